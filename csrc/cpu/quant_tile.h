// Quantised weights times quantised activations: the loop that all integer forms share.
//
//   tile: R rows x one panel of kLanes columns. Weights are read once for all rows, and because
//   panels follow each other in memory, a thread reads one linear stream: twice as fast from DRAM
//   as four panels side by side (measured: 27 to 31 against 12 to 15 GB/s per core, read limit 32).
//
//   per row and 32 k: 8 dots of four k (16 with 16-bit activations), one convert, one product of
//   scales, one or two FMAs. Rows with 32 registers: 8; with 16: 6, though some sums are spilled:
//   unpacking for more rows at once gains 6 %.
//
// The integer dots are exact and the float chain of an output element runs over k in order, scale
// term then min term: the same bits for every number of rows.
//
// A Format says what a block of kBlock values of k is: `dots` gives R vectors of integer dots.
#pragma once
#include "dot.h"
#include "packed.h"
#include "quantize.h"
#include "tile.h"

namespace vllm {
namespace VLLM_ISA {

constexpr int kQuantRows = kVectorRegisters >= 32 ? 8 : 6;

template <class Format>
VLLM_INLINE Vec load_scales(const uint8_t* p) {
  if constexpr (Format::kBlock == 16) return load(reinterpret_cast<const float*>(p));
  else return load(reinterpret_cast<const Half*>(p));
}

template <class Format, bool kWide, int R>
void quant_tile(const LinearArgs& a, const QuantLayout& layout, int64_t row, int64_t panel) {
  const Q8Rows x(a.x_q8 + row * q8_row_bytes(a.w->k), a.w->k);
  const uint8_t* group = static_cast<const uint8_t*>(a.w->data) + panel * layout.panel_bytes;
  Vec sum[R];
  for (int r = 0; r < R; ++r) sum[r] = zero();
  for (int64_t k = 0; k < x.padded;) {
    const Vec scale = load_scales<Format>(group);
    Vec min;
    if constexpr (Format::kHasMin) min = load_scales<Format>(group + layout.mins);
    const uint8_t* values = group + layout.values;
    const int64_t end = k + a.w->group < x.padded ? k + a.w->group : x.padded;
    for (; k < end; k += Format::kBlock, values += Format::kBlockBytes) {
      prefetch<Format::kBlockBytes + 2 * kLanes>(values);
      IVec dot[R];
      Format::template dots<kWide, R>(values, x, k, dot);
      for (int r = 0; r < R; ++r) {
        const int64_t g = k / kQ8Group;
        sum[r] = fma(to_float(dot[r]), scale * set1(x.scale(r, g)), sum[r]);
        if constexpr (Format::kHasMin) sum[r] = fma(min, set1(x.sum(r, g)), sum[r]);
      }
    }
    group += layout.group_bytes;
  }
  for (int r = 0; r < R; ++r) write_columns(a, row + r, panel * kQuantPanel, sum[r]);
}

template <class Format, bool kWide>
void quant_run(const LinearArgs& a, int64_t rows, int ith, int nth) {
  const QuantLayout layout(*a.w);
  for_tiles<kQuantRows>(a.w->n_pad / kQuantPanel, rows, ith, nth,
                        [&](auto count, int64_t row, int64_t panel) {
                          quant_tile<Format, kWide, count.value>(a, layout, row, panel);
                        });
}

template <class Format>
void quant_linear(const LinearArgs& a, bool wide, int64_t rows, int ith, int nth) {
  wide ? quant_run<Format, true>(a, rows, ith, nth) : quant_run<Format, false>(a, rows, ith, nth);
}

}  // namespace VLLM_ISA
}  // namespace vllm
