// What the matrix kernels share: rows of a step, the split over threads, and the end of a tile.
#pragma once
#include "isa.h"
#include "packed.h"
#include "simd.h"

namespace vllm {
namespace VLLM_ISA {

// One kernel per form of weight; linear.cpp picks.
void linear_float(const LinearArgs&, int64_t rows, int ith, int nth);
void linear_w8(const LinearArgs&, bool wide, int64_t rows, int ith, int nth);
void linear_w4(const LinearArgs&, bool wide, int64_t rows, int ith, int nth);

// Rows that pass over a panel before the next panel is read: they stay in L2 meanwhile.
constexpr int64_t kRowBlock = 64;

// out[row, col .. col + kLanes) = alpha * (sum + bias) + residual; columns from n on are not written.
VLLM_INLINE void write_columns(const LinearArgs& a, int64_t row, int64_t col, Vec sum) {
  const int64_t n = a.w->n - col;
  float* out = a.out + row * a.out_stride + col;
  const float* residual = a.residual ? a.residual + row * a.residual_stride + col : nullptr;
  if (n >= kLanes) {
    if (a.bias) sum = sum + load(a.bias + col);
    if (a.alpha != 1.0f) sum = sum * set1(a.alpha);
    if (residual) sum = sum + load(residual);
    return store(out, sum);
  }
  for (int64_t i = 0; i < n; ++i) {
    float value = sum[i];
    if (a.bias) value += a.bias[col + i];
    if (a.alpha != 1.0f) value *= a.alpha;
    if (residual) value += residual[i];
    out[i] = value;
  }
}

// Calls tile(row, count) over [begin, end) with counts of at most kMax, as even as possible.
template <int kMax, class Tile>
VLLM_INLINE void for_row_tiles(int64_t begin, int64_t end, Tile tile) {
  const int64_t rows = end - begin, tiles = (rows + kMax - 1) / kMax;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t first = begin + rows * i / tiles, last = begin + rows * (i + 1) / tiles;
    tile(first, static_cast<int>(last - first));
  }
}

}  // namespace VLLM_ISA
}  // namespace vllm
