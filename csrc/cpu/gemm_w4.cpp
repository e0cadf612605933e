// 4-bit weights (affine, groups of 32) times activations of 16 or 8 bits.
//
// Per panel of L columns and group of 32: four loads give eight vectors of nibbles, which serve up to
// eight rows; per row: eight dots (two times eight for 16 bits) with four activations given to all lanes, one convert, one multiply
// of the scales, one or two FMAs. Registers with 32: 8 nibbles + 8 sums + the row's; rows with 16: 4.
//
// The integer dots are exact and the float chain of an output element runs over the groups in order,
// scale term then min term: the same bits for every number of rows.
#include "dot.h"
#include "packed.h"
#include "quantize.h"
#include "tile.h"

namespace vllm {
namespace VLLM_ISA {
namespace {

constexpr int kMaxRows = kVectorRegisters >= 32 ? 8 : 4;
constexpr int kMaxPanels = 4;

struct Nibbles { IVec v[8]; };

VLLM_INLINE Nibbles unpack(const uint8_t* values) {
  Nibbles out;
  const IVec mask = iset1(0x0f0f0f0f);
  for (int j = 0; j < 4; ++j) {
    const IVec both = load_as<IVec>(values + j * 4 * kLanes);
    out.v[j] = both & mask;
    out.v[j + 4] = (both >> 4) & mask;
  }
  return out;
}

VLLM_INLINE IVec dot_group(const Nibbles& w, const int8_t* x) {
  IVec dot = izero();
  for (int j = 0; j < 8; ++j) dot = dot_u4(dot, w.v[j], broadcast4(x + 4 * j));
  return dot_u4_end(dot);
}

template <bool kWide>
VLLM_INLINE Vec add_group(const Nibbles& w, Vec scale, const Vec* min, const Q8Row& x, int64_t g,
                          Vec sum) {
  IVec dot = dot_group(w, x.high + g * kQ8Group);
  if constexpr (kWide) dot = join_planes(dot, dot_group(w, x.low + g * kQ8Group));
  sum = fma(to_float(dot), scale * set1(x.scale[g]), sum);
  return min ? fma(*min, set1(x.sum[g]), sum) : sum;
}

template <bool kWide, bool kHasMin, int R, int P>
void tile(const LinearArgs& a, int64_t row, int64_t panel) {
  const QuantLayout layout(WeightKind::q4, kQ8Group, kHasMin, a.w->k);
  const uint8_t* w = static_cast<const uint8_t*>(a.w->data) + panel * layout.panel_bytes;
  const int64_t stride = q8_row_bytes(a.w->k);
  Q8Row x[R];
  for (int r = 0; r < R; ++r) x[r] = q8_view(a.x_q8 + (row + r) * stride, a.w->k);
  Vec sum[R][P];
  for (int r = 0; r < R; ++r) for (int p = 0; p < P; ++p) sum[r][p] = zero();
  for (int64_t g = 0; g < layout.groups; ++g, w += layout.group_bytes) {
    for (int p = 0; p < P; ++p) {
      const uint8_t* group = w + p * layout.panel_bytes;
      if constexpr (R == 1) __builtin_prefetch(group + 1024);
      const Vec scale = load(reinterpret_cast<const Half*>(group));
      Vec min;
      if constexpr (kHasMin) min = load(reinterpret_cast<const Half*>(group + layout.mins));
      const Nibbles nibbles = unpack(group + layout.values);
      for (int r = 0; r < R; ++r) {
        sum[r][p] = add_group<kWide>(nibbles, scale, kHasMin ? &min : nullptr, x[r], g, sum[r][p]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) write_columns(a, row + r, (panel + p) * kQuantPanel, sum[r][p]);
  }
}

template <bool kWide, bool kHasMin>
void with_rows(const LinearArgs& a, int64_t row, int count, int64_t panel) {
  switch (count) {
    case 1: return tile<kWide, kHasMin, 1, 1>(a, row, panel);
    case 2: return tile<kWide, kHasMin, 2, 1>(a, row, panel);
    case 3: return tile<kWide, kHasMin, 3, 1>(a, row, panel);
    case 4: return tile<kWide, kHasMin, 4, 1>(a, row, panel);
    default: break;
  }
  if constexpr (kMaxRows > 4) {
    switch (count) {
      case 5: return tile<kWide, kHasMin, 5, 1>(a, row, panel);
      case 6: return tile<kWide, kHasMin, 6, 1>(a, row, panel);
      case 7: return tile<kWide, kHasMin, 7, 1>(a, row, panel);
      default: return tile<kWide, kHasMin, 8, 1>(a, row, panel);
    }
  }
}

template <bool kWide, bool kHasMin>
void run(const LinearArgs& a, int64_t rows, int ith, int nth) {
  const int64_t panels = a.w->n_pad / kQuantPanel;
  const int64_t first = panels * ith / nth, last = panels * (ith + 1) / nth;
  if (rows == 1) {
    int64_t panel = first;
    for (; panel + kMaxPanels <= last; panel += kMaxPanels) {
      tile<kWide, kHasMin, 1, kMaxPanels>(a, 0, panel);
    }
    for (; panel < last; ++panel) tile<kWide, kHasMin, 1, 1>(a, 0, panel);
    return;
  }
  for (int64_t begin = 0; begin < rows; begin += kRowBlock) {
    const int64_t end = begin + kRowBlock < rows ? begin + kRowBlock : rows;
    for (int64_t panel = first; panel < last; ++panel) {
      for_row_tiles<kMaxRows>(begin, end, [&](int64_t row, int count) {
        with_rows<kWide, kHasMin>(a, row, count, panel);
      });
    }
  }
}

}  // namespace

void linear_w4(const LinearArgs& a, bool wide, int64_t rows, int ith, int nth) {
  if (wide) {
    a.w->has_min ? run<true, true>(a, rows, ith, nth) : run<true, false>(a, rows, ith, nth);
  } else {
    a.w->has_min ? run<false, true>(a, rows, ith, nth) : run<false, false>(a, rows, ith, nth);
  }
}

}  // namespace VLLM_ISA
}  // namespace vllm
