// Anonymous memory that costs nothing until it is touched.
//
// Arenas, KV caches and packed weights are reserved at their full size with mmap: the kernel gives
// zeroed pages on first use, so an idle server stays small.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <utility>

namespace vllm {

class Mapping {
 public:
  Mapping() = default;
  // Throws std::bad_alloc if the address space or the commit limit does not allow it. Vector loads
  // may read up to 63 bytes past the end of a row, so there is always a tail.
  explicit Mapping(size_t bytes) : bytes_(bytes + kTail) {
    void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    data_ = p;
  }
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }

  void* data() const { return data_; }
  size_t size() const { return bytes_ < kTail ? 0 : bytes_ - kTail; }

  // Large pages make streaming reads faster; only for memory that will be filled entirely.
  void prefer_huge_pages() {
#ifdef MADV_HUGEPAGE
    madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
  }

 private:
  static constexpr size_t kTail = 64;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace vllm
