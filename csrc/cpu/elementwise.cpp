// Ops on rows: norms, activations, sums, gathers, embeddings, the scale of logits.
//
// Each output element is a function of its own row, computed in one fixed order: a reduction over a
// row has four chains of vectors, then the lanes. Rows, or groups of 32 columns where columns are
// independent, are divided evenly over the threads.
#include <algorithm>
#include <cmath>

#include "isa.h"
#include "quantize.h"
#include "simd.h"

namespace vllm {
namespace VLLM_ISA {
namespace {

static_assert(kQ8Group % kLanes == 0, "a group is whole vectors");

int64_t num_rows(Rows rows, const StepParams& step) {
  return rows == Rows::tokens ? step.num_tokens : step.num_logits;
}

// A vector of a row from column i on; lanes past its end hold `fill`.
Vec read(const float* row, int64_t i, int64_t size, float fill = 0.0f) {
  if (i + kLanes <= size) return load(row + i);
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, fill);
  std::copy(row + std::min(i, size), row + size, lanes);
  return load(lanes);
}

// Lanes past the end of the row are not written.
void write(float* row, int64_t i, int64_t size, Vec v) {
  if (i + kLanes <= size) return store(row + i, v);
  float lanes[kLanes];
  store(lanes, v);
  std::copy(lanes, lanes + std::max<int64_t>(0, size - i), row + i);
}

// Sums over a row: sum = term(x, sum). `neutral` is an x that adds nothing.
template <class Term>
float reduce(const float* x, int64_t size, float neutral, Term term) {
  Vec sum[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
    for (int c = 0; c < 4; ++c) sum[c] = term(load(x + i + c * kLanes), sum[c]);
  }
  for (int c = 0; i < size; i += kLanes, ++c) sum[c] = term(read(x, i, size, neutral), sum[c]);
  return reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// Groups of 32 columns of one row, [first, last): value(i) is the vector from column i on. Goes to
// `out`, or as a quantised row to `out_q8`, or both.
template <class Value>
void make_groups(int64_t size, int64_t first, int64_t last, float* out, uint8_t* out_q8, bool wide,
                 Value value) {
  for (int64_t g = first; g < last; ++g) {
    float group[kQ8Group];
    for (int64_t i = 0; i < kQ8Group; i += kLanes) store(group + i, value(g * kQ8Group + i));
    const int64_t n = std::min<int64_t>(kQ8Group, size - g * kQ8Group);
    if (out != nullptr) std::copy(group, group + n, out + g * kQ8Group);
    if (out_q8 == nullptr) continue;
    std::fill(group + n, group + kQ8Group, 0.0f);
    quantize_group(group, g, size, wide, out_q8);
  }
}

int64_t num_groups(int64_t size) { return q8_padded(size) / kQ8Group; }

// Divides rows x groups evenly; calls fn(row, first group, last group).
template <class Fn>
void share_groups(int64_t rows, int64_t size, int ith, int nth, Fn fn) {
  const int64_t groups = num_groups(size), total = rows * groups;
  int64_t unit = total * ith / nth;
  const int64_t end = total * (ith + 1) / nth;
  while (unit < end) {
    const int64_t row = unit / groups, first = unit % groups;
    const int64_t last = std::min(groups, first + end - unit);
    fn(row, first, last);
    unit += last - first;
  }
}

uint8_t* q8_row(uint8_t* base, int64_t row, int64_t size) {
  return base == nullptr ? nullptr : base + row * q8_row_bytes(size);
}

float* f32_row(float* base, int64_t row, int64_t stride) {
  return base == nullptr ? nullptr : base + row * stride;
}

// ---- norm -------------------------------------------------------------------------------------

void norm_row(const NormArgs& a, bool wide, int64_t row) {
  const float* x = a.x + row * a.x_stride;
  const float n = static_cast<float>(a.size);
  float mean = 0.0f;
  if (a.kind == NormKind::layer) {
    mean = reduce(x, a.size, 0.0f, [](Vec v, Vec sum) { return sum + v; }) / n;
  }
  const Vec shift = set1(mean);
  const float squares = reduce(x, a.size, mean, [&](Vec v, Vec sum) {
    const Vec centred = v - shift;
    return fma(centred, centred, sum);
  });
  const Vec factor = set1(1.0f / std::sqrt(squares / n + a.eps));
  auto value = [&](int64_t i) {
    Vec y = (read(x, i, a.size) - shift) * factor;
    if (a.weight != nullptr) y = y * read(a.weight, i, a.size);
    return a.bias != nullptr ? y + read(a.bias, i, a.size) : y;
  };
  make_groups(a.size, 0, num_groups(a.size), f32_row(a.out, row, a.out_stride),
              q8_row(a.out_q8, row, a.size), wide, value);
}

// ---- activations ------------------------------------------------------------------------------

Vec sigmoid(Vec x) { return set1(1.0f) / (set1(1.0f) + exp(zero() - x)); }

// Abramowitz and Stegun 7.1.26 for |x|, absolute error below 2e-7.
Vec erf(Vec x) {
  const Vec size = abs(x);
  const Vec t = set1(1.0f) / fma(set1(0.3275911f), size, set1(1.0f));
  Vec p = fma(set1(1.061405429f), t, set1(-1.453152027f));
  p = fma(p, t, set1(1.421413741f));
  p = fma(p, t, set1(-0.284496736f));
  p = fma(p, t, set1(0.254829592f));
  return copy_sign(set1(1.0f) - p * t * exp(zero() - size * size), x);
}

template <Activation act>
Vec activate(Vec x) {
  if constexpr (act == Activation::silu) return x * sigmoid(x);
  if constexpr (act == Activation::gelu) {
    return set1(0.5f) * x * (set1(1.0f) + erf(x * set1(0.70710678f)));
  }
  if constexpr (act == Activation::gelu_tanh) {   // 0.5 (1 + tanh(u)) = sigmoid(2 u)
    return x * sigmoid(x * fma(x * x, set1(0.0713548162f), set1(1.59576912f)));
  }
  const Vec positive = max(x, zero());
  return act == Activation::relu2 ? positive * positive : positive;
}

template <Activation act>
void act_rows(const ActArgs& a, const StepParams& step, int ith, int nth) {
  share_groups(num_rows(a.rows, step), a.size, ith, nth, [&](int64_t row, int64_t g0, int64_t g1) {
    const float* x = a.x + row * a.x_stride;
    auto value = [&](int64_t i) {
      const Vec y = activate<act>(read(x, i, a.size));
      return a.gated ? y * read(x + a.size, i, a.size) : y;
    };
    make_groups(a.size, g0, g1, f32_row(a.out, row, a.out_stride), q8_row(a.out_q8, row, a.size),
                step.wide, value);
  });
}

}  // namespace

// ---- the ops ----------------------------------------------------------------------------------

void norm(const NormArgs& a, const StepParams& step, int ith, int nth) {
  const int64_t rows = num_rows(a.rows, step);
  for (int64_t row = rows * ith / nth; row < rows * (ith + 1) / nth; ++row) {
    norm_row(a, step.wide, row);
  }
}

void quantize(const QuantizeArgs& a, const StepParams& step, int ith, int nth) {
  share_groups(num_rows(a.rows, step), a.size, ith, nth, [&](int64_t row, int64_t g0, int64_t g1) {
    const float* x = a.x + row * a.x_stride;
    make_groups(a.size, g0, g1, nullptr, q8_row(a.out_q8, row, a.size), step.wide,
                [&](int64_t i) { return read(x, i, a.size); });
  });
}

void act(const ActArgs& a, const StepParams& step, int ith, int nth) {
  switch (a.act) {
    case Activation::silu: return act_rows<Activation::silu>(a, step, ith, nth);
    case Activation::gelu: return act_rows<Activation::gelu>(a, step, ith, nth);
    case Activation::gelu_tanh: return act_rows<Activation::gelu_tanh>(a, step, ith, nth);
    case Activation::relu: return act_rows<Activation::relu>(a, step, ith, nth);
    case Activation::relu2: return act_rows<Activation::relu2>(a, step, ith, nth);
  }
}

void add(const AddArgs& a, const StepParams& step, int ith, int nth) {
  const Vec alpha = set1(a.alpha);
  share_groups(num_rows(a.rows, step), a.size, ith, nth, [&](int64_t row, int64_t g0, int64_t g1) {
    const float *x = a.a + row * a.a_stride, *y = a.b + row * a.b_stride;
    make_groups(a.size, g0, g1, a.out + row * a.out_stride, nullptr, false, [&](int64_t i) {
      return fma(alpha, read(y, i, a.size), read(x, i, a.size));
    });
  });
}

void logits(const LogitsArgs& a, const StepParams& step, int ith, int nth) {
  const bool capped = a.softcap > 0;
  const Vec scale = set1(capped ? a.scale / a.softcap : a.scale), cap = set1(a.softcap);
  share_groups(step.num_logits, a.size, ith, nth, [&](int64_t row, int64_t g0, int64_t g1) {
    float* x = a.x + row * a.x_stride;
    make_groups(a.size, g0, g1, x, nullptr, false, [&](int64_t i) {
      const Vec scaled = read(x, i, a.size) * scale;
      return capped ? cap * tanh(scaled) : scaled;
    });
  });
}

void gather(const GatherArgs& a, const StepParams& step, int ith, int nth) {
  const int64_t rows = step.num_logits;
  for (int64_t row = rows * ith / nth; row < rows * (ith + 1) / nth; ++row) {
    const float* x = a.x + step.logits_indices[row] * a.x_stride;
    std::copy(x, x + a.size, a.out + row * a.out_stride);
  }
}

void embedding(const EmbeddingArgs& a, const StepParams& step, int ith, int nth) {
  const int64_t rows = step.num_tokens, size = a.w->k;
  const Vec scale = set1(a.scale);
  for (int64_t row = rows * ith / nth; row < rows * (ith + 1) / nth; ++row) {
    float* out = a.out + row * a.out_stride;
    unpack_rows(*a.w, step.token_ids[row], 1, out);
    if (a.scale == 1.0f) continue;
    for (int64_t i = 0; i < size; i += kLanes) write(out, i, size, read(out, i, size) * scale);
  }
}

}  // namespace VLLM_ISA
}  // namespace vllm
