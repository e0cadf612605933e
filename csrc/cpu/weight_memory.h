// Memory of packed weights: pieces of slabs that consist of large pages.
//
// A matrix of a small model has less than a large page (2 MiB), and a core reads small pages a third
// slower (measured, 4-bit weights: 20 against 31 GB/s). Pieces follow each other in the order in
// which they are asked for, which is the order in which a step reads them. A slab is given back when
// its last piece is gone; pieces are never reused, so they are zero at first.
#pragma once
#include <cstddef>
#include <memory>

namespace vllm {

class WeightMemory {
 public:
  WeightMemory() = default;
  explicit WeightMemory(size_t bytes);   // throws std::bad_alloc
  void* data() const { return data_.get(); }   // 64-byte aligned; loads may read 63 bytes beyond

 private:
  std::shared_ptr<void> data_;   // keeps the slab
};

}  // namespace vllm
