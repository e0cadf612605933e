// Quantising 32 activations: q = round(x / scale) with scale = max|x| / 127.
//
// A quantised row (kernels.h): [ int8 q[k_pad] | float scale[groups] | float sum[groups] ].
#pragma once
#include "kernels.h"
#include "simd.h"

namespace vllm {
namespace VLLM_ISA {

struct Q8Row {
  const int8_t* q;
  const float* scale;
  const float* sum;
};

VLLM_INLINE Q8Row q8_view(const uint8_t* row, int64_t k) {
  const int64_t padded = q8_padded(k);
  const float* scale = reinterpret_cast<const float*>(row + padded);
  return {reinterpret_cast<const int8_t*>(row), scale, scale + padded / kQ8Group};
}

// group: 32 floats (zeros beyond k) that become group g of `row`. Rounds to nearest even.
VLLM_INLINE void quantize_group(const float* group, int64_t g, int64_t k, uint8_t* row) {
  const int64_t padded = q8_padded(k);
  int8_t* q = reinterpret_cast<int8_t*>(row) + g * kQ8Group;
  float* scale = reinterpret_cast<float*>(row + padded) + g;
  Vec top = zero();
  for (int i = 0; i < kQ8Group; i += kLanes) top = max(top, abs(load(group + i)));
  const float largest = reduce_max(top);
  const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
  *scale = largest * (1.0f / 127.0f);
  const Vec magic = set1(12582912.0f);
  IVec sum = iset1(0);
  int32_t rounded[kQ8Group];
  for (int i = 0; i < kQ8Group; i += kLanes) {
    const IVec value = bits(fma(load(group + i), set1(inverse), magic)) - bits(magic);
    __builtin_memcpy(rounded + i, &value, sizeof value);
    sum += value;
  }
  int32_t total = 0;
  for (int i = 0; i < kLanes; ++i) total += sum[i];
  for (int i = 0; i < kQ8Group; ++i) q[i] = static_cast<int8_t>(rounded[i]);
  scale[padded / kQ8Group] = *scale * static_cast<float>(total);
}

}  // namespace VLLM_ISA
}  // namespace vllm
