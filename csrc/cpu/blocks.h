// Quantised rows of checkpoints, read 32 values at a time. Layouts: the GGUF specification.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace vllm {
namespace VLLM_ISA {

// 32 consecutive values: w = scale[i / 16] * q[i] + min.
struct Group {
  float scale[2];
  float min;
  int8_t q[32];
  void set(float s, float m) { scale[0] = scale[1] = s, min = m; }
};

VLLM_INLINE float half_at(const uint8_t* p) { return half_to_float(load_as<uint16_t>(p)); }
VLLM_INLINE int8_t to_int8(int x) { return static_cast<int8_t>(x); }

VLLM_INLINE void read_nibbles(const uint8_t* p, int8_t* q) {
  for (int i = 0; i < 16; ++i) q[i] = to_int8(p[i] & 15), q[i + 16] = to_int8(p[i] >> 4);
}

VLLM_INLINE void add_fifth_bits(const uint8_t* p, int8_t* q) {
  const uint32_t high = load_as<uint32_t>(p);
  for (int i = 0; i < 32; ++i) q[i] = to_int8(q[i] | ((high >> i) & 1) << 4);
}

// ---- blocks of 32 -----------------------------------------------------------------------------

VLLM_INLINE void read_q4_0(const uint8_t* p, Group& out) {      // d | 16 bytes;  d (q - 8)
  out.set(half_at(p), -8.0f * half_at(p));
  read_nibbles(p + 2, out.q);
}

VLLM_INLINE void read_q4_1(const uint8_t* p, Group& out) {      // d | m | 16 bytes
  out.set(half_at(p), half_at(p + 2));
  read_nibbles(p + 4, out.q);
}

VLLM_INLINE void read_q5_0(const uint8_t* p, Group& out) {      // d | 32 bits | 16 bytes;  d (q - 16)
  out.set(half_at(p), 0.0f);
  read_nibbles(p + 6, out.q);
  add_fifth_bits(p + 2, out.q);
  for (int8_t& q : out.q) q = to_int8(q - 16);
}

VLLM_INLINE void read_q5_1(const uint8_t* p, Group& out) {      // d | m | 32 bits | 16 bytes
  out.set(half_at(p), half_at(p + 2));
  read_nibbles(p + 8, out.q);
  add_fifth_bits(p + 4, out.q);
}

VLLM_INLINE void read_q8_0(const uint8_t* p, Group& out) {      // d | 32 int8
  out.set(half_at(p), 0.0f);
  __builtin_memcpy(out.q, p + 2, 32);
}

// ---- blocks of 256 ----------------------------------------------------------------------------

// d | dmin | eight 6-bit scales and minima in 12 bytes | ...
VLLM_INLINE void read_k_header(const uint8_t* p, int j, Group& out) {
  const uint8_t* s = p + 4;
  int scale = s[j] & 63, min = s[j + 4] & 63;
  if (j >= 4) {
    scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
  }
  out.set(half_at(p) * static_cast<float>(scale), -half_at(p + 2) * static_cast<float>(min));
}

// Header | 128 bytes: sub-blocks 2i and 2i + 1 are the low and high nibbles of 32 bytes.
VLLM_INLINE void read_q4_k(const uint8_t* p, int j, Group& out) {
  read_k_header(p, j, out);
  const uint8_t* values = p + 16 + j / 2 * 32;
  for (int i = 0; i < 32; ++i) out.q[i] = to_int8((values[i] >> (j % 2 * 4)) & 15);
}

// Header | 32 bytes whose bit j is the fifth bit of sub-block j | 128 bytes as above.
VLLM_INLINE void read_q5_k(const uint8_t* p, int j, Group& out) {
  read_k_header(p, j, out);
  const uint8_t *high = p + 16, *values = p + 48 + j / 2 * 32;
  for (int i = 0; i < 32; ++i) {
    out.q[i] = to_int8(((values[i] >> (j % 2 * 4)) & 15) | ((high[i] >> j) & 1) << 4);
  }
}

// 128 low nibbles | 64 bytes of high pairs | 16 int8 scales | d;  d scale (q - 32). In each half of
// 128 values, group g of four has nibble g / 2 of 32 bytes at 32 (g % 2), and pair g of the high bits.
VLLM_INLINE void read_q6_k(const uint8_t* p, int j, Group& out) {
  const int half = j / 4, g = j % 4;
  const uint8_t* low = p + half * 64 + g % 2 * 32;
  const uint8_t* high = p + 128 + half * 32;
  const uint8_t* scales = p + 192 + half * 8 + g * 2;
  const float d = half_at(p + 208);
  out.scale[0] = d * static_cast<float>(to_int8(scales[0]));
  out.scale[1] = d * static_cast<float>(to_int8(scales[1]));
  out.min = 0.0f;
  for (int i = 0; i < 32; ++i) {
    const int q = ((low[i] >> (g / 2 * 4)) & 15) | ((high[i] >> (g * 2)) & 3) << 4;
    out.q[i] = to_int8(q - 32);
  }
}

// ---- all types --------------------------------------------------------------------------------

struct BlockType { int64_t values, bytes; };

VLLM_INLINE BlockType block_type(SourceType type) {
  switch (type) {
    case SourceType::f32: return {1, 4};
    case SourceType::f16: return {1, 2};
    case SourceType::bf16: return {1, 2};
    case SourceType::q4_0: return {32, 18};
    case SourceType::q4_1: return {32, 20};
    case SourceType::q5_0: return {32, 22};
    case SourceType::q5_1: return {32, 24};
    case SourceType::q8_0: return {32, 34};
    case SourceType::q4_k: return {256, 144};
    case SourceType::q5_k: return {256, 176};
    case SourceType::q6_k: return {256, 210};
  }
  return {1, 0};
}

VLLM_INLINE bool is_float(SourceType type) { return type <= SourceType::bf16; }

// Group g of a row, for the types that are not float.
VLLM_INLINE void read_group(const uint8_t* row, SourceType type, int64_t g, Group& out) {
  const BlockType block = block_type(type);
  const uint8_t* p = row + g * 32 / block.values * block.bytes;
  const int j = static_cast<int>(g % (block.values / 32));
  switch (type) {
    case SourceType::q4_0: return read_q4_0(p, out);
    case SourceType::q4_1: return read_q4_1(p, out);
    case SourceType::q5_0: return read_q5_0(p, out);
    case SourceType::q5_1: return read_q5_1(p, out);
    case SourceType::q4_k: return read_q4_k(p, j, out);
    case SourceType::q5_k: return read_q5_k(p, j, out);
    case SourceType::q6_k: return read_q6_k(p, j, out);
    default: return read_q8_0(p, out);
  }
}

VLLM_INLINE float value_of(const Group& group, int i) {
  return group.scale[i / 16] * static_cast<float>(group.q[i]) + group.min;
}

}  // namespace VLLM_ISA
}  // namespace vllm
