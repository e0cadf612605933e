// What the matrix kernels share: how tiles are divided over threads and visited, and how a tile's
// sums become outputs.
#pragma once
#include <type_traits>

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

// Weights are fetched this far ahead: DRAM answers after about 100 ns, in which a core reads 3 KiB.
constexpr int64_t kPrefetchBytes = 4096;

template <int kBytes>
VLLM_INLINE void prefetch(const void* p) {
  const char* ahead = static_cast<const char*>(p) + kPrefetchBytes;
  for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(ahead + i);
}

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

// ---- dividing the work ------------------------------------------------------------------------

VLLM_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The panels and rows of one thread. Panels are divided first, so that a thread reads its share of
// the weights only; if that leaves threads idle, rows are divided as well, in powers of two.
struct Share {
  int64_t panel0, panel1, row0, row1;

  Share(int64_t panels, int64_t rows, int64_t tile_rows, int ith, int nth) {
    int64_t row_parts = 1, best = ceil_div(panels, nth) * ceil_div(rows, tile_rows);
    for (int64_t parts = 2; nth % parts == 0; parts *= 2) {
      const int64_t work = ceil_div(panels, nth / parts) * ceil_div(ceil_div(rows, parts), tile_rows);
      // A tenth better, or it does not pay for reading the weights several times.
      if (work * 10 < best * 9) best = work, row_parts = parts;
    }
    const int64_t panel_parts = nth / row_parts, p = ith % panel_parts, r = ith / panel_parts;
    panel0 = panels * p / panel_parts, panel1 = panels * (p + 1) / panel_parts;
    row0 = rows * r / row_parts, row1 = rows * (r + 1) / row_parts;
  }
};

// Calls tile(count, row) with `count` as a constant; it is between 1 and kMax.
template <int kMax, class Tile>
VLLM_INLINE void with_count(int count, Tile tile) {
  if constexpr (kMax > 1) {
    if (count < kMax) return with_count<kMax - 1>(count, tile);
  }
  tile(std::integral_constant<int, kMax>());
}

// Calls tile(count, row, panel) for all tiles of a thread: `count` rows from `row` on, at most kMax
// and as even as possible.
template <int kMax, class Tile>
VLLM_INLINE void for_tiles(int64_t panels, int64_t rows, int ith, int nth, Tile tile) {
  const Share share(panels, rows, kMax, ith, nth);
  for (int64_t begin = share.row0; begin < share.row1; begin += kRowBlock) {
    const int64_t n = share.row1 - begin < kRowBlock ? share.row1 - begin : kRowBlock;
    const int64_t tiles = ceil_div(n, kMax);
    for (int64_t panel = share.panel0; panel < share.panel1; ++panel) {
      for (int64_t i = 0; i < tiles; ++i) {
        const int64_t first = n * i / tiles, last = n * (i + 1) / tiles;
        with_count<kMax>(static_cast<int>(last - first),
                         [&](auto count) { tile(count, begin + first, panel); });
      }
    }
  }
}

}  // namespace VLLM_ISA
}  // namespace vllm
