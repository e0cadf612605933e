// Quantising 32 activations: q = round(x / scale) with scale = max|x| / 127, or / (127 * 254) for 16
// bits (the layout of a row is in kernels.h).
//
// NaN and infinity survive as a scale that is not finite.
#pragma once
#include "dot.h"
#include "kernels.h"
#include "simd.h"

namespace vllm {
namespace VLLM_ISA {

// Quantised rows that are `stride` bytes apart; r is a row, g a group of 32.
struct Q8Rows {
  const uint8_t* base;
  int64_t stride, padded;

  Q8Rows(const uint8_t* first, int64_t k)
      : base(first), stride(q8_row_bytes(k)), padded(q8_padded(k)) {}
  // 8 bits, or the high plane of 16; the low plane; or 16 bits as they are.
  const int8_t* bytes(int r) const { return reinterpret_cast<const int8_t*>(base + r * stride); }
  const int8_t* low_bytes(int r) const { return bytes(r) + padded; }
  const int16_t* words(int r) const { return reinterpret_cast<const int16_t*>(bytes(r)); }

  const float* scales(int r) const {
    return reinterpret_cast<const float*>(bytes(r) + 2 * padded);
  }
  float scale(int r, int64_t g) const { return scales(r)[g]; }
  float sum(int r, int64_t g) const { return (scales(r) + padded / kQ8Group)[g]; }
  // One per 16 values.
  const int32_t* corrections(int r) const {
    return reinterpret_cast<const int32_t*>(scales(r) + 2 * (padded / kQ8Group));
  }
};

VLLM_INLINE float q8_steps(bool wide) { return wide ? 127.0f * kHighStep : 127.0f; }

// Groups so small that 1 / scale would overflow are zero. The comparison is true for NaN.
VLLM_INLINE float q8_scale(float largest, bool wide) {
  return !(largest <= 1e-30f) ? largest / q8_steps(wide) : 0.0f;
}

// x in [-limit, limit]; NaN becomes -limit.
VLLM_INLINE Vec clip(Vec x, float limit) { return min(max(x, set1(-limit)), set1(limit)); }

VLLM_INLINE IVec round_to_int(Vec x) {   // |x| < 2^22, to nearest even
  const Vec magic = set1(kRoundMagic);
  return bits(x + magic) - bits(magic);
}

// kLanes values from column i of a row on.
VLLM_INLINE void store_q8(uint8_t* row, int64_t padded, int64_t i, IVec q, bool wide) {
  int8_t* bytes = reinterpret_cast<int8_t*>(row) + i;
  if (!wide) return store_bytes(bytes, q);
  if constexpr (kByteDots) {
    const IVec high = round_to_int(to_float(q) * set1(1.0f / kHighStep));
    store_bytes(bytes, high);
    store_bytes(bytes + padded, q - high * iset1(kHighStep));
  } else {
    store_words(reinterpret_cast<int16_t*>(row) + i, swap_middle(q));
  }
}

// group: 32 floats (zeros beyond k) that become group g of `row`. Rounds to nearest even.
VLLM_INLINE void quantize_group(const float* group, int64_t g, int64_t k, bool wide,
                                uint8_t* row) {
  const int64_t padded = q8_padded(k), groups = padded / kQ8Group;
  float* scales = reinterpret_cast<float*>(row + 2 * padded);
  int32_t* corrections = reinterpret_cast<int32_t*>(scales + 2 * groups);
  IVec top = izero();   // the bits of absolute values sort like these, and NaN is above all
  for (int i = 0; i < kQ8Group; i += kLanes) top = imax(top, bits(abs(load(group + i))));
  const int32_t largest = reduce_max(top);
  const float scale = q8_scale(load_as<float>(&largest), wide);
  const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  int32_t total = 0;
  for (int half = 0; half < 2; ++half) {
    IVec sum = izero();
    for (int i = 16 * half; i < 16 * half + 16; i += kLanes) {
      const IVec q = round_to_int(clip(load(group + i) * set1(inverse), q8_steps(wide)));
      store_q8(row, padded, g * kQ8Group + i, q, wide);
      sum = sum + q;
    }
    const int32_t half_total = reduce_add(sum);
    corrections[2 * g + half] = -128 * half_total;
    total += half_total;
  }
  scales[g] = scale;
  scales[groups + g] = scale * static_cast<float>(total);
}

}  // namespace VLLM_ISA
}  // namespace vllm
