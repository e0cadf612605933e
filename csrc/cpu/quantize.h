// Quantising 32 activations: q = round(x / scale) with scale = max|x| / 127.
//
// A quantised row (kernels.h):
//   [ int8 q[k_pad] | float scale[groups] | float sum[groups] | int32 correction[2 groups] ]
// NaN and infinity survive as a scale that is not finite.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace vllm {
namespace VLLM_ISA {

struct Q8Row {
  const int8_t* q;
  const float* scale;
  const float* sum;
  const int32_t* correction;   // one per 16 values
};

VLLM_INLINE Q8Row q8_view(const uint8_t* row, int64_t k) {
  const int64_t padded = q8_padded(k), groups = padded / kQ8Group;
  const float* scale = reinterpret_cast<const float*>(row + padded);
  const float* sum = scale + groups;
  return {reinterpret_cast<const int8_t*>(row), scale, sum,
          reinterpret_cast<const int32_t*>(sum + groups)};
}

// Groups so small that 1 / scale would overflow are zero. The comparison is true for NaN.
VLLM_INLINE float q8_scale(float largest) { return !(largest <= 1e-35f) ? largest / 127.0f : 0.0f; }

// group: 32 floats (zeros beyond k) that become group g of `row`. Rounds to nearest even.
VLLM_INLINE void quantize_group(const float* group, int64_t g, int64_t k, uint8_t* row) {
  const int64_t padded = q8_padded(k), groups = padded / kQ8Group;
  int8_t* q = reinterpret_cast<int8_t*>(row) + g * kQ8Group;
  float* scales = reinterpret_cast<float*>(row + padded);
  int32_t* corrections = reinterpret_cast<int32_t*>(scales + 2 * groups);
  IVec top = izero();   // the bits of absolute values sort like these, and NaN is above all
  for (int i = 0; i < kQ8Group; i += kLanes) top = imax(top, bits(abs(load(group + i))));
  const int32_t largest = reduce_max(top);
  const float scale = q8_scale(load_as<float>(&largest));
  const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  const Vec magic = set1(kRoundMagic);
  int32_t total = 0;
  for (int half = 0; half < 2; ++half) {
    IVec sum = izero();
    for (int i = 16 * half; i < 16 * half + 16; i += kLanes) {
      const IVec value = bits(load(group + i) * set1(inverse) + magic) - bits(magic);
      store_bytes(q + i, value);
      sum = sum + value;
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
