// rope_cache: q/k norm and rotation in place on [q | k | v], then k and v to their cache slots.
//
//   k cache [block][kv head][head_dim][block_size]: one value to each of head_dim columns
//   v cache [block][kv head][block_size][head_dim]: one row
//
// The unit of work is one head of one token; a whole token if the norm spans the heads.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "isa.h"
#include "simd.h"

namespace vllm {
namespace VLLM_ISA {
namespace {

// ---- norm -------------------------------------------------------------------------------------

// Sums run over eight lanes: head_dim is a multiple of 8.
constexpr int kSumLanes = 8;

void rms_norm(float* x, const float* weight, int64_t size, float eps) {
  float sum[kSumLanes] = {};
  for (int64_t i = 0; i < size; i += kSumLanes) {
    for (int j = 0; j < kSumLanes; ++j) sum[j] += x[i + j] * x[i + j];
  }
  for (int j = 1; j < kSumLanes; ++j) sum[0] += sum[j];
  const float factor = 1.0f / std::sqrt(sum[0] / static_cast<float>(size) + eps);
  for (int64_t i = 0; i < size; ++i) x[i] = x[i] * factor * weight[i];
}

// ---- rope -------------------------------------------------------------------------------------

void rotate_pair(float& first, float& second, float cos, float sin) {
  const float a = first, b = second;
  first = a * cos - b * sin;
  second = b * cos + a * sin;
}

void rotate(float* x, const float* cos, const float* sin, int32_t half, bool interleaved) {
  if (interleaved) {
    for (int32_t i = 0; i < half; ++i) rotate_pair(x[2 * i], x[2 * i + 1], cos[i], sin[i]);
    return;
  }
  int32_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Vec a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(x + i, a * c - b * s);
    store(x + half + i, b * c + a * s);
  }
  for (; i < half; ++i) rotate_pair(x[i], x[half + i], cos[i], sin[i]);
}

// ---- cache ------------------------------------------------------------------------------------

// Half floats are kept finite: an infinite key or value would make later sums NaN.
template <class T>
Vec storable(Vec x) {
  if constexpr (std::is_same_v<T, Half>) return min(set1(65504.0f), max(set1(-65504.0f), x));
  return x;
}

// Calls put(d, value) for each value of a head as it is stored. Vectors may read past the head, but
// not past the arena.
template <class T, class Put>
void narrow(const float* x, int32_t head_dim, Put put) {
  T lanes[kLanes];
  for (int32_t d = 0; d < head_dim; d += kLanes) {
    store(lanes, storable<T>(load(x + d)));
    const int32_t n = std::min(head_dim - d, static_cast<int32_t>(kLanes));
    for (int32_t j = 0; j < n; ++j) put(d + j, lanes[j]);
  }
}

template <class T>
void write_key(const RopeCacheArgs& a, int64_t block_size, int64_t slot, int64_t head,
               const float* x) {
  const int64_t block = slot / block_size * a.num_kv_heads + head;
  T* to = static_cast<T*>(a.k_cache) + block * a.head_dim * block_size + slot % block_size;
  narrow<T>(x, a.head_dim, [&](int32_t d, T value) { to[d * block_size] = value; });
}

template <class T>
void write_value(const RopeCacheArgs& a, int64_t block_size, int64_t slot, int64_t head,
                 const float* x) {
  const int64_t block = slot / block_size * a.num_kv_heads + head;
  T* to = static_cast<T*>(a.v_cache) + (block * block_size + slot % block_size) * a.head_dim;
  narrow<T>(x, a.head_dim, [&](int32_t d, T value) { to[d] = value; });
}

// ---- one head of one token --------------------------------------------------------------------

template <class T>
void run_head(const RopeCacheArgs& a, const StepParams& step, int64_t token, int64_t head) {
  float* x = a.qkv + token * a.qkv_stride + head * a.head_dim;
  const bool is_query = head < a.num_heads;
  const int64_t kv_head = is_query ? -1 : (head - a.num_heads) % a.num_kv_heads;
  const int64_t slot = step.slot_mapping[a.group][token];
  if (head >= a.num_heads + a.num_kv_heads) {
    return write_value<T>(a, step.block_size, slot, kv_head, x);
  }
  if (a.qk_norm == QkNorm::per_head) {
    rms_norm(x, is_query ? a.q_norm : a.k_norm, a.head_dim, a.eps);
  }
  if (a.cos_sin != nullptr) {
    const float* cos = a.cos_sin + int64_t{step.positions[token]} * a.rot_dim;
    rotate(x, cos, cos + a.rot_dim / 2, a.rot_dim / 2, a.interleaved != 0);
  }
  if (!is_query) write_key<T>(a, step.block_size, slot, kv_head, x);
}

template <class T>
void run(const RopeCacheArgs& a, const StepParams& step, int ith, int nth) {
  const int64_t heads = a.num_heads + 2 * int64_t{a.num_kv_heads};
  const bool whole_tokens = a.qk_norm == QkNorm::full;
  const int64_t units = step.num_tokens * (whole_tokens ? 1 : heads);
  for (int64_t u = units * ith / nth; u < units * (ith + 1) / nth; ++u) {
    if (!whole_tokens) {
      run_head<T>(a, step, u / heads, u % heads);
      continue;
    }
    float* q = a.qkv + u * a.qkv_stride;
    const int64_t q_size = int64_t{a.num_heads} * a.head_dim;
    rms_norm(q, a.q_norm, q_size, a.eps);
    rms_norm(q + q_size, a.k_norm, int64_t{a.num_kv_heads} * a.head_dim, a.eps);
    for (int64_t head = 0; head < heads; ++head) run_head<T>(a, step, u, head);
  }
}

}  // namespace

void rope_cache(const RopeCacheArgs& a, const StepParams& step, int ith, int nth) {
  switch (static_cast<WeightKind>(a.kv_kind)) {
    case WeightKind::f16: return run<Half>(a, step, ith, nth);
    case WeightKind::bf16: return run<BFloat>(a, step, ith, nth);
    default: return run<float>(a, step, ith, nth);
  }
}

}  // namespace VLLM_ISA
}  // namespace vllm
