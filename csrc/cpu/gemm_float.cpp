// Float weights: out = x W^T by outer products over k.
//
//   W packed [n / P][k][P], P = two vectors of output columns, in the stored type
//   tile: R rows x 2 vectors; per k: 2 loads (widened once for all rows), R broadcasts, 2R FMAs
//   registers: 12 x 2 sums + 2 + 1 = 27 of 32;  6 x 2 + 2 + 1 = 15 of 16
//
// One row reads several panels at a time instead, so that enough loads are in flight. Either way an
// output element is one chain of FMAs over k = 0, 1, ...: the same bits for every number of rows.
#include "tile.h"

namespace vllm {
namespace VLLM_ISA {
namespace {

constexpr int kMaxRows = kVectorRegisters >= 32 ? 12 : 6;
constexpr int kMaxPanels = 4;

template <class T, int R>
void row_tile(const LinearArgs& a, int64_t row, int64_t panel) {
  const int64_t k = a.w->k;
  const T* w = static_cast<const T*>(a.w->data) + panel * k * kFloatPanel;
  const float* x = a.x + row * a.x_stride;
  Vec sum[R][2];
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = zero();
  for (int64_t i = 0; i < k; ++i, w += kFloatPanel) {
    const Vec w0 = load(w), w1 = load(w + kLanes);
    for (int r = 0; r < R; ++r) {
      const Vec value = set1(x[r * a.x_stride + i]);
      sum[r][0] = fma(value, w0, sum[r][0]);
      sum[r][1] = fma(value, w1, sum[r][1]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < 2; ++v) {
      write_columns(a, row + r, panel * kFloatPanel + v * kLanes, sum[r][v]);
    }
  }
}

template <class T, int P>
void one_row(const LinearArgs& a, int64_t row, int64_t panel) {
  const int64_t k = a.w->k, stride = k * kFloatPanel;
  const T* w = static_cast<const T*>(a.w->data) + panel * stride;
  const float* x = a.x + row * a.x_stride;
  Vec sum[P][2];
  for (int p = 0; p < P; ++p) sum[p][0] = sum[p][1] = zero();
  for (int64_t i = 0; i < k; ++i, w += kFloatPanel) {
    const Vec value = set1(x[i]);
    for (int p = 0; p < P; ++p) {
      __builtin_prefetch(w + p * stride + 1024 / sizeof(T));
      sum[p][0] = fma(value, load(w + p * stride), sum[p][0]);
      sum[p][1] = fma(value, load(w + p * stride + kLanes), sum[p][1]);
    }
  }
  for (int p = 0; p < P; ++p) {
    for (int v = 0; v < 2; ++v) {
      write_columns(a, row, (panel + p) * kFloatPanel + v * kLanes, sum[p][v]);
    }
  }
}

template <class T>
void with_rows(const LinearArgs& a, int64_t row, int count, int64_t panel) {
  switch (count) {
    case 1: return one_row<T, 1>(a, row, panel);
    case 2: return row_tile<T, 2>(a, row, panel);
    case 3: return row_tile<T, 3>(a, row, panel);
    case 4: return row_tile<T, 4>(a, row, panel);
    case 5: return row_tile<T, 5>(a, row, panel);
    case 6: return row_tile<T, 6>(a, row, panel);
    default: break;
  }
  if constexpr (kMaxRows > 6) {
    switch (count) {
      case 7: return row_tile<T, 7>(a, row, panel);
      case 8: return row_tile<T, 8>(a, row, panel);
      case 9: return row_tile<T, 9>(a, row, panel);
      case 10: return row_tile<T, 10>(a, row, panel);
      case 11: return row_tile<T, 11>(a, row, panel);
      default: return row_tile<T, 12>(a, row, panel);
    }
  }
}

template <class T>
void run(const LinearArgs& a, int64_t rows, int ith, int nth) {
  const int64_t panels = a.w->n_pad / kFloatPanel;
  const int64_t first = panels * ith / nth, last = panels * (ith + 1) / nth;
  if (rows == 1) {
    int64_t panel = first;
    for (; panel + kMaxPanels <= last; panel += kMaxPanels) one_row<T, kMaxPanels>(a, 0, panel);
    for (; panel < last; ++panel) one_row<T, 1>(a, 0, panel);
    return;
  }
  for (int64_t begin = 0; begin < rows; begin += kRowBlock) {
    const int64_t end = begin + kRowBlock < rows ? begin + kRowBlock : rows;
    for (int64_t panel = first; panel < last; ++panel) {
      for_row_tiles<kMaxRows>(begin, end, [&](int64_t row, int count) {
        with_rows<T>(a, row, count, panel);
      });
    }
  }
}

}  // namespace

void linear_float(const LinearArgs& a, int64_t rows, int ith, int nth) {
  switch (a.w->kind) {
    case WeightKind::f16: return run<Half>(a, rows, ith, nth);
    case WeightKind::bf16: return run<BFloat>(a, rows, ith, nth);
    default: return run<float>(a, rows, ith, nth);
  }
}

}  // namespace VLLM_ISA
}  // namespace vllm
