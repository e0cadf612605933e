// Anonymous memory that costs nothing until it is touched.
//
// Arenas, KV caches and packed weights are reserved at their full size with mmap: the kernel gives
// zeroed pages on first use, so an idle server stays small. A build with AddressSanitizer takes
// what fits from the heap instead, where reading past the end is noticed.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
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
  // Starts at a large page and asks for large pages, which make streaming reads faster; for memory
  // that will be filled entirely.
  static Mapping of_large_pages(size_t bytes) {
    if (kChecked) return Mapping(bytes);
    Mapping whole(bytes + kLargePage);
    whole.align();
    return whole;
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

  void* data() const { return static_cast<char*>(data_) + offset_; }
  size_t size() const { return data_ == nullptr ? 0 : bytes_ - kTail - offset_; }

  // Does a build with a sanitizer look after each mapping?
#ifdef __SANITIZE_ADDRESS__
  static constexpr bool kChecked = true;
#else
  static constexpr bool kChecked = false;
#endif

 private:
  static constexpr size_t kTail = 64;
  static constexpr size_t kLargePage = size_t{2} << 20;
  static constexpr size_t kHeapLimit = kChecked ? size_t{64} << 20 : 0;

  void align() {
    const size_t misaligned = reinterpret_cast<uintptr_t>(data_) % kLargePage;
    offset_ = misaligned == 0 ? 0 : kLargePage - misaligned;
#ifdef MADV_HUGEPAGE
    madvise(data(), bytes_ - offset_, MADV_HUGEPAGE);
#endif
  }

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
    std::swap(offset_, other.offset_);
    std::swap(on_heap_, other.on_heap_);
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
  size_t offset_ = 0;   // of data() in the mapping
  bool on_heap_ = false;
};

}  // namespace vllm
