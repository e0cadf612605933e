// int8 weights (scale and perhaps min per group of 16 or 32) times activations of 16 or 8 bits.
//
// Per panel of L columns and group: the weight vectors are split into size and sign once for all
// rows; per row and four k: one dot (two for 16 bits). With 16 registers the vectors of half a group are live at a time.
//
// As in gemm_w4.cpp, the dots are exact and the float chain over the groups is fixed.
#include "dot.h"
#include "packed.h"
#include "quantize.h"
#include "tile.h"

namespace vllm {
namespace VLLM_ISA {
namespace {

constexpr int kMaxRows = kVectorRegisters >= 32 ? 8 : 4;
constexpr int kMaxPanels = 4;

template <int kGroup>
VLLM_INLINE Vec load_scale(const uint8_t* p) {
  if constexpr (kGroup == 16) return load(reinterpret_cast<const float*>(p));
  else return load(reinterpret_cast<const Half*>(p));
}

// Adds one group of one panel to R rows.
template <bool kWide, int kGroup, bool kHasMin, int R>
VLLM_INLINE void add_group(const uint8_t* group, const QuantLayout& layout, const Q8Row* x,
                           int64_t g, Vec* const* sum) {
  const Vec scale = load_scale<kGroup>(group);
  const uint8_t* values = group + layout.values;
  IVec high[R], low[R];
  for (int r = 0; r < R; ++r) high[r] = low[r] = izero();
  for (int j = 0; j < kGroup / 4; ++j) {
    const ByteWeights w = byte_weights(load_bytes(values + j * 4 * kLanes));
    for (int r = 0; r < R; ++r) {
      const int64_t i = g * kGroup + 4 * j;
      high[r] = dot_s8(high[r], w, broadcast4(x[r].high + i));
      if constexpr (kWide) low[r] = dot_s8(low[r], w, broadcast4(x[r].low + i));
    }
  }
  const int64_t xg = g * kGroup / kQ8Group;   // group of activations
  for (int r = 0; r < R; ++r) {
    IVec dot = kWide ? join_planes(high[r], low[r]) : high[r];
    dot = dot + correction(x[r].correction + g * kGroup / 16);
    if constexpr (kGroup == 32) dot = dot + correction(x[r].correction + 2 * g + 1);
    *sum[r] = fma(to_float(dot), scale * set1(x[r].scale[xg]), *sum[r]);
    if constexpr (kHasMin) {
      *sum[r] = fma(load_scale<kGroup>(group + layout.mins), set1(x[r].sum[xg]), *sum[r]);
    }
  }
}

template <bool kWide, int kGroup, bool kHasMin, int R, int P>
void tile(const LinearArgs& a, int64_t row, int64_t panel) {
  const QuantLayout layout(WeightKind::q8, kGroup, kHasMin, a.w->k);
  const uint8_t* w = static_cast<const uint8_t*>(a.w->data) + panel * layout.panel_bytes;
  const int64_t stride = q8_row_bytes(a.w->k);
  Q8Row x[R];
  for (int r = 0; r < R; ++r) x[r] = q8_view(a.x_q8 + (row + r) * stride, a.w->k);
  Vec sum[P][R];
  for (int p = 0; p < P; ++p) for (int r = 0; r < R; ++r) sum[p][r] = zero();
  for (int64_t g = 0; g < layout.groups; ++g, w += layout.group_bytes) {
    for (int p = 0; p < P; ++p) {
      const uint8_t* group = w + p * layout.panel_bytes;
      if constexpr (R == 1) __builtin_prefetch(group + 1024), __builtin_prefetch(group + 1344);
      Vec* sums[R];
      for (int r = 0; r < R; ++r) sums[r] = &sum[p][r];
      add_group<kWide, kGroup, kHasMin, R>(group, layout, x, g, sums);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) write_columns(a, row + r, (panel + p) * kQuantPanel, sum[p][r]);
  }
}

template <bool kWide, int kGroup, bool kHasMin>
void with_rows(const LinearArgs& a, int64_t row, int count, int64_t panel) {
  switch (count) {
    case 1: return tile<kWide, kGroup, kHasMin, 1, 1>(a, row, panel);
    case 2: return tile<kWide, kGroup, kHasMin, 2, 1>(a, row, panel);
    case 3: return tile<kWide, kGroup, kHasMin, 3, 1>(a, row, panel);
    case 4: return tile<kWide, kGroup, kHasMin, 4, 1>(a, row, panel);
    default: break;
  }
  if constexpr (kMaxRows > 4) {
    switch (count) {
      case 5: return tile<kWide, kGroup, kHasMin, 5, 1>(a, row, panel);
      case 6: return tile<kWide, kGroup, kHasMin, 6, 1>(a, row, panel);
      case 7: return tile<kWide, kGroup, kHasMin, 7, 1>(a, row, panel);
      default: return tile<kWide, kGroup, kHasMin, 8, 1>(a, row, panel);
    }
  }
}

template <bool kWide, int kGroup, bool kHasMin>
void run(const LinearArgs& a, int64_t rows, int ith, int nth) {
  const int64_t panels = a.w->n_pad / kQuantPanel;
  const int64_t first = panels * ith / nth, last = panels * (ith + 1) / nth;
  if (rows == 1) {
    int64_t panel = first;
    for (; panel + kMaxPanels <= last; panel += kMaxPanels) {
      tile<kWide, kGroup, kHasMin, 1, kMaxPanels>(a, 0, panel);
    }
    for (; panel < last; ++panel) tile<kWide, kGroup, kHasMin, 1, 1>(a, 0, panel);
    return;
  }
  for (int64_t begin = 0; begin < rows; begin += kRowBlock) {
    const int64_t end = begin + kRowBlock < rows ? begin + kRowBlock : rows;
    for (int64_t panel = first; panel < last; ++panel) {
      for_row_tiles<kMaxRows>(begin, end, [&](int64_t row, int count) {
        with_rows<kWide, kGroup, kHasMin>(a, row, count, panel);
      });
    }
  }
}

template <bool kWide>
void pick_group(const LinearArgs& a, int64_t rows, int ith, int nth) {
  if (a.w->group == 16) return run<kWide, 16, false>(a, rows, ith, nth);
  a.w->has_min ? run<kWide, 32, true>(a, rows, ith, nth) : run<kWide, 32, false>(a, rows, ith, nth);
}

}  // namespace

void linear_w8(const LinearArgs& a, bool wide, int64_t rows, int ith, int nth) {
  wide ? pick_group<true>(a, rows, ith, nth) : pick_group<false>(a, rows, ith, nth);
}

}  // namespace VLLM_ISA
}  // namespace vllm
