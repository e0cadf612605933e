// Which kernels this CPU can run. The tables are constants; asking the CPU happens here alone.
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "kernels.h"

namespace vllm {

#if defined(__x86_64__)
namespace isa_avx512_vnni { extern const KernelTable kTable; }
namespace isa_avx512 { extern const KernelTable kTable; }
namespace isa_avx2 { extern const KernelTable kTable; }
namespace isa_baseline { extern const KernelTable kTable; }
#else
namespace isa_neon_dot { extern const KernelTable kTable; }
namespace isa_neon { extern const KernelTable kTable; }
#endif

namespace {

#if defined(__x86_64__)
// Older compilers do not know "f16c" as a name for __builtin_cpu_supports.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

bool has_avx2() {   // the builtin also asks whether the system saves the registers
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_avx512_vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
#else
bool has_dot() {
#if defined(__linux__)
  constexpr unsigned long kDotProduct = 1ul << 20;   // HWCAP_ASIMDDP
  return (getauxval(AT_HWCAP) & kDotProduct) != 0;
#else
  return true;   // every Apple CPU of this architecture
#endif
}
#endif

bool always() { return true; }

struct Candidate {
  const KernelTable* table;
  bool (*supported)();
};

// Best first.
constexpr std::array kCandidates = {
#if defined(__x86_64__)
    Candidate{&isa_avx512_vnni::kTable, has_avx512_vnni},
    Candidate{&isa_avx512::kTable, has_avx512},
    Candidate{&isa_avx2::kTable, has_avx2},
    Candidate{&isa_baseline::kTable, always},
#else
    Candidate{&isa_neon_dot::kTable, has_dot},
    Candidate{&isa_neon::kTable, always},
#endif
};

}  // namespace

std::vector<const KernelTable*> supported_kernels() {
  std::vector<const KernelTable*> tables;
  for (const Candidate& c : kCandidates) {
    if (c.supported()) tables.push_back(c.table);
  }
  return tables;
}

const KernelTable* best_kernels() { return supported_kernels().front(); }

const KernelTable* kernels_by_name(const char* isa) {
  for (const KernelTable* table : supported_kernels()) {
    if (std::strcmp(table->isa, isa) == 0) return table;
  }
  return nullptr;
}

}  // namespace vllm
