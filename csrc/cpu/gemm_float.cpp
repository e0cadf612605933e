// Float weights: out = x W^T by outer products over k.
//
//   W packed [n / P][k][P], P = two vectors of output columns, in the stored type
//   tile: R rows x 2 vectors; per k: 2 loads (widened once for all rows), R broadcasts, 2R FMAs
//   registers: 12 x 2 sums + 2 + 1 = 27 of 32;  6 x 2 + 2 + 1 = 15 of 16
//
// An output element is one chain of FMAs over k = 0, 1, ...: the same bits for every number of rows.
// One row alone has few chains, so two panels are read side by side.
#include "tile.h"

namespace vllm {
namespace VLLM_ISA {
namespace {

constexpr int kMaxRows = kVectorRegisters >= 32 ? 12 : 6;

template <class T, int R, int P>
void tile(const LinearArgs& a, int64_t row, int64_t panel) {
  const int64_t k = a.w->k, stride = k * kFloatPanel;
  const T* w = static_cast<const T*>(a.w->data) + panel * stride;
  const float* x = a.x + row * a.x_stride;
  Vec sum[R][P][2];
  for (auto& row_sums : sum) for (auto& s : row_sums) s[0] = s[1] = zero();
  for (int64_t i = 0; i < k; ++i, w += kFloatPanel) {
    Vec weight[P][2];
    for (int p = 0; p < P; ++p) {
      const T* from = w + p * stride;
      prefetch<kFloatPanel * sizeof(T)>(from);
      weight[p][0] = load(from), weight[p][1] = load(from + kLanes);
    }
    for (int r = 0; r < R; ++r) {
      const Vec value = set1(x[r * a.x_stride + i]);
      for (int p = 0; p < P; ++p) {
        for (int v = 0; v < 2; ++v) sum[r][p][v] = fma(value, weight[p][v], sum[r][p][v]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) {
      const int64_t col = (panel + p) * kFloatPanel;
      for (int v = 0; v < 2; ++v) write_columns(a, row + r, col + v * kLanes, sum[r][p][v]);
    }
  }
}

template <class T>
void one_row(const LinearArgs& a, int64_t panels, int ith, int nth) {
  int64_t panel = panels * ith / nth;
  const int64_t last = panels * (ith + 1) / nth;
  for (; panel + 2 <= last; panel += 2) tile<T, 1, 2>(a, 0, panel);
  if (panel < last) tile<T, 1, 1>(a, 0, panel);
}

template <class T>
void run(const LinearArgs& a, int64_t rows, int ith, int nth) {
  const int64_t panels = a.w->n_pad / kFloatPanel;
  if (rows == 1) return one_row<T>(a, panels, ith, nth);
  for_tiles<kMaxRows>(panels, rows, ith, nth, [&](auto count, int64_t row, int64_t panel) {
    tile<T, count.value, 1>(a, row, panel);
  });
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
