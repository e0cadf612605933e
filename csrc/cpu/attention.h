// Sizes that attention.cpp and its caller agree on: how keys are cut, and what scratch holds.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace vllm {

// Keys are processed in chunks at fixed positions: chunk c holds positions [256 c, 256 (c + 1)).
constexpr int kAttentionChunk = 256;
// Query rows (tokens x heads of one KV head) of a work item; more only if one token has more heads.
constexpr int kAttentionTileRows = 64;
// Rows that are computed together, at most (8 with 32 vector registers, 6 with 16).
constexpr int kAttentionMaxRows = 8;

// scratch:  [ counter, 64 bytes | one piece per thread | partial results ]
struct AttentionScratch {
  int64_t rows, dim;   // rows of a tile at most; head_dim rounded up to a whole vector

  AttentionScratch(int32_t num_heads, int32_t head_dim)
      : rows(std::max<int64_t>(kAttentionTileRows, num_heads)), dim((head_dim + 15) / 16 * 16) {}

  // In floats: the keys of a chunk are padded, so that a column does not fall on one cache set.
  static constexpr int64_t kKeyStride = kAttentionChunk + 16;
  int64_t record() const { return dim + 16; }             // max, sum, -, output[dim]
  int64_t q() const { return rows * dim; }
  int64_t scores() const { return kAttentionMaxRows * int64_t{kAttentionChunk}; }
  int64_t fresh() const { return kAttentionMaxRows * record(); }
  int64_t state() const { return rows * record(); }
  int64_t keys() const { return dim * kKeyStride; }
  int64_t values() const { return kAttentionChunk * dim; }
  int64_t thread_floats() const { return q() + scores() + fresh() + state() + keys() + values(); }
  size_t thread_bytes() const { return static_cast<size_t>(thread_floats()) * sizeof(float); }
  static constexpr size_t kCounterBytes = 64;
  // Enough to split one sequence of a million tokens with 32 heads of 64; only touched when used.
  static constexpr size_t kPartialBytes = size_t{64} << 20;
};

}  // namespace vllm
