// Anonymous memory that costs nothing until it is touched.
//
// Arenas, KV caches and packed weights are reserved at their full size with mmap: the kernel gives
// zeroed pages on first use, so an idle server stays small. A build with AddressSanitizer takes
// what fits from the heap instead, where reading past the end is noticed.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace vllm {

class Mapping {
 public:
  Mapping() = default;
  // Throws std::bad_alloc if the address space or the commit limit does not allow it. Vector loads
  // may read up to 63 bytes past the end of a row, so there is always a tail.
  explicit Mapping(size_t bytes) : bytes_(bytes + kTail), on_heap_(bytes <= kHeapLimit) {
    data_ = on_heap_ ? heap_zeros(bytes_) : map_zeros(bytes_);
  }
  Mapping(Mapping&& other) noexcept { swap(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    swap(other);
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (on_heap_) std::free(data_);
    else if (data_ != nullptr) munmap(data_, bytes_);
  }

  void* data() const { return data_; }
  size_t size() const { return data_ == nullptr ? 0 : bytes_ - kTail; }

  // Large pages make streaming reads faster; only for memory that will be filled entirely.
  void prefer_huge_pages() {
#ifdef MADV_HUGEPAGE
    if (!on_heap_) madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
  }

 private:
  static constexpr size_t kTail = 64;
#ifdef __SANITIZE_ADDRESS__
  static constexpr size_t kHeapLimit = size_t{64} << 20;
#else
  static constexpr size_t kHeapLimit = 0;
#endif

  static void* map_zeros(size_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    return p;
  }
  static void* heap_zeros(size_t bytes) {
    void* p = nullptr;
    if (posix_memalign(&p, 64, bytes) != 0) throw std::bad_alloc();
    return std::memset(p, 0, bytes);
  }
  void swap(Mapping& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(on_heap_, other.on_heap_);
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
  bool on_heap_ = false;
};

}  // namespace vllm
