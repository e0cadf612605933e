// Checks the kernels of every ISA of this CPU without Python: for machines that are only emulated
// (test_neon.py). Oracles are plain loops in double precision.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels.h"

namespace vllm {
namespace {

int failures = 0;

void expect(bool good, const char* what, const KernelTable& t, const char* detail) {
  if (good) return;
  std::printf("FAILED %s: %s %s\n", t.isa, what, detail);
  ++failures;
}

std::vector<float> random_floats(size_t n, unsigned seed) {
  std::vector<float> x(n);
  for (float& v : x) {
    seed = seed * 1664525u + 1013904223u;
    v = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
  }
  return x;
}

struct Aligned {
  explicit Aligned(size_t bytes) : data(std::aligned_alloc(64, (bytes + 191) / 64 * 64)) {
    std::memset(data, 0, (bytes + 191) / 64 * 64);
  }
  ~Aligned() { std::free(data); }
  void* data;
};

struct Form { WeightKind kind; int32_t group, has_min; const char* name; };
constexpr Form kForms[] = {
    {WeightKind::f32, 0, 0, "f32"},   {WeightKind::f16, 0, 0, "f16"},
    {WeightKind::bf16, 0, 0, "bf16"}, {WeightKind::q8, 16, 0, "q8-16"},
    {WeightKind::q8, 32, 0, "q8-32"}, {WeightKind::q8, 128, 1, "q8-128-min"},
    {WeightKind::q4, 32, 1, "q4-32"}, {WeightKind::q4, 64, 1, "q4-64"},
};

// ---- linear -----------------------------------------------------------------------------------

class LinearCheck {
 public:
  LinearCheck(const KernelTable& t, const Form& form, int64_t n, int64_t k, bool wide)
      : t_(t), form_(form), n_(n), k_(k), wide_(wide),
        memory_(static_cast<size_t>(t.packed_bytes(form.kind, form.group, form.has_min, n, k))) {
    const int64_t bytes = t.packed_bytes(form.kind, form.group, form.has_min, n, k);
    int64_t n_pad = n;
    while (t.packed_bytes(form.kind, form.group, form.has_min, n_pad + 1, k) == bytes) ++n_pad;
    w_ = {form.kind, form.group, form.has_min, n, k, n_pad, memory_.data,
          static_cast<size_t>(bytes)};
    const std::vector<float> source = random_floats(static_cast<size_t>(n * k), 1);
    t.pack_rows(w_, 0, n, source.data(), SourceType::f32, 0, 1);
    weights_.resize(static_cast<size_t>(n * k + 64));
    t.unpack_rows(w_, 0, n, weights_.data());
  }

  void run(int64_t rows) {
    std::vector<float> x = random_floats(static_cast<size_t>(rows * k_ + 64), 2);
    const std::vector<float> all = multiply(x.data(), rows);
    compare(x, all, rows);
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<float> one = multiply(x.data() + r * k_, 1);
      expect(std::memcmp(one.data(), &all[static_cast<size_t>(r * n_)],
                         static_cast<size_t>(n_) * sizeof(float)) == 0,
             "a row alone has other bits", t_, form_.name);
    }
  }

 private:
  bool quantised() const { return form_.group != 0; }

  std::vector<float> multiply(const float* x, int64_t rows) {
    StepParams step{};
    step.num_tokens = rows;
    step.wide = wide_;
    Aligned q8(static_cast<size_t>(rows * q8_row_bytes(k_)));
    auto* rows_q8 = static_cast<uint8_t*>(q8.data);
    t_.quantize({Rows::tokens, x, k_, k_, rows_q8}, step, 0, 1);
    std::vector<float> out(static_cast<size_t>(rows * n_));
    const LinearArgs a{Rows::tokens, &w_, x, k_, rows_q8, nullptr, 1.0f, nullptr, 0, out.data(), n_};
    for (int ith = 0; ith < 3; ++ith) t_.linear(a, step, ith, 3);
    return out;
  }

  void compare(const std::vector<float>& x, const std::vector<float>& out, int64_t rows) {
    const double error = !quantised() ? 1e-6 : wide_ ? 1e-4 : 2e-2;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < n_; ++c) {
        double want = 0, size = 0;
        for (int64_t i = 0; i < k_; ++i) {
          const double w = weights_[static_cast<size_t>(c * k_ + i)];
          const double v = x[static_cast<size_t>(r * k_ + i)];
          want += w * v, size += std::abs(w * v);
        }
        const double got = out[static_cast<size_t>(r * n_ + c)];
        if (std::abs(got - want) > error * (size + 0.01)) {
          std::printf("  row %ld column %ld: %g, want %g\n", static_cast<long>(r),
                      static_cast<long>(c), got, want);
          return expect(false, wide_ ? "linear, 16 bits" : "linear, 8 bits", t_, form_.name);
        }
      }
    }
  }

  const KernelTable& t_;
  const Form form_;
  const int64_t n_, k_;
  const bool wide_;
  Aligned memory_;
  PackedWeight w_{};
  std::vector<float> weights_;
};

// ---- functions and 16-bit floats --------------------------------------------------------------

void check_silu(const KernelTable& t) {
  std::vector<float> x(1000 + 64), y(1000 + 64);
  for (int i = 0; i < 1000; ++i) x[static_cast<size_t>(i)] = static_cast<float>(i - 500) * 0.2f;
  StepParams step{};
  step.num_tokens = 1;
  t.act({Activation::silu, 0, Rows::tokens, x.data(), 1000, 1000, y.data(), 1000, nullptr}, step, 0,
        1);
  for (size_t i = 0; i < 1000; ++i) {
    const double v = x[i], want = v / (1.0 + std::exp(-v));
    if (std::abs(y[i] - want) > 1e-6 * (std::abs(want) + 1e-6)) {
      std::printf("  silu(%g) = %g, want %g\n", v, static_cast<double>(y[i]), want);
      return expect(false, "silu", t, "");
    }
  }
}

// Every half widened by the vector load of a product with 1.
void check_halves(const KernelTable& t) {
  std::vector<uint16_t> halves;
  for (unsigned h = 0; h < 65536; ++h) {
    if ((h & 0x7c00) != 0x7c00) halves.push_back(static_cast<uint16_t>(h));
  }
  const auto n = static_cast<int64_t>(halves.size());
  Aligned memory(static_cast<size_t>(t.packed_bytes(WeightKind::f16, 0, 0, n, 1)));
  int64_t n_pad = (n + 31) / 32 * 32;
  const PackedWeight w{WeightKind::f16, 0, 0, n, 1, n_pad, memory.data, 0};
  t.pack_rows(w, 0, n, halves.data(), SourceType::f16, 0, 1);
  std::vector<float> want(halves.size() + 64), got(halves.size() + 64);
  t.unpack_rows(w, 0, n, want.data());
  const float one[64] = {1.0f};
  StepParams step{};
  step.num_tokens = 1;
  t.linear({Rows::tokens, &w, one, 1, nullptr, nullptr, 1.0f, nullptr, 0, got.data(), n}, step, 0, 1);
  for (size_t i = 0; i < halves.size(); ++i) {
    const int exponent = (halves[i] >> 10) & 31, mantissa = halves[i] & 1023;
    const double size = exponent == 0 ? std::ldexp(mantissa, -24)
                                      : std::ldexp(1024 + mantissa, exponent - 25);
    const double value = halves[i] & 0x8000 ? -size : size;
    if (static_cast<double>(want[i]) != value || static_cast<double>(got[i]) != value) {
      return expect(false, "widening of halves", t, "");
    }
  }
}

int run() {
  for (const KernelTable* t : supported_kernels()) {
    for (const Form& form : kForms) {
      for (const bool wide : {false, true}) {
        for (const int64_t rows : {1, 2, 7, 13}) {
          LinearCheck(*t, form, 37, 96, wide).run(rows);
          LinearCheck(*t, form, 70, 300, wide).run(rows);
        }
      }
    }
    check_silu(*t);
    check_halves(*t);
    std::printf("%s: %d failures\n", t->isa, failures);
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace vllm

int main() { return vllm::run(); }
