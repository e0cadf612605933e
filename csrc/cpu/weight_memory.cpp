#include "weight_memory.h"

#include <mutex>

#include "memory.h"

namespace vllm {
namespace {

constexpr size_t kSlabBytes = size_t{64} << 20;
constexpr size_t kCacheLineBytes = 64;

struct Slab {
  explicit Slab(size_t size) : memory(Mapping::of_large_pages(size)) {}
  Mapping memory;
  size_t used = 0;
};

// The slab that small pieces are taken from, as long as one of them is in use.
struct Current {
  std::mutex mutex;
  std::weak_ptr<Slab> slab;
};

Current& current() {
  static Current state;
  return state;
}

std::shared_ptr<void> take(const std::shared_ptr<Slab>& slab, size_t bytes) {
  void* data = static_cast<char*>(slab->memory.data()) + slab->used;
  slab->used += bytes;
  return {slab, data};
}

}  // namespace

WeightMemory::WeightMemory(size_t bytes) {
  const size_t size = (bytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
  // Big ones, and all of them where overruns are looked for, have a slab of their own.
  if (Mapping::kChecked || size > kSlabBytes / 4) {
    data_ = take(std::make_shared<Slab>(size), size);
    return;
  }
  const std::lock_guard lock(current().mutex);
  std::shared_ptr<Slab> slab = current().slab.lock();
  if (slab == nullptr || slab->used + size > kSlabBytes) {
    slab = std::make_shared<Slab>(kSlabBytes);
    current().slab = slab;
  }
  data_ = take(slab, size);
}

}  // namespace vllm
