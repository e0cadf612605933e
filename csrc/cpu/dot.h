// Dot products of bytes and of 16-bit values, kept in 32-bit lanes; all of them exact.
//
// A weight vector holds four consecutive k of kLanes rows, as bytes; an activation vector the same
// four k of one row in every lane. With 16-bit activations the even and the odd bytes of the weights
// become pairs of 16-bit values, unless there is a dot product of four bytes: then that takes the two
// planes of the activations in turn.
//
//   ISA            u4 x s8                     s8 x s8                        16 bits
//   baseline       pmaddwd on 16-bit values    the same                       pmaddwd
//   avx2, avx512   vpmaddubsw, up to 8 sums    |w| x sign(w) x: vpmaddubsw    vpmaddwd
//                  in 16 bits, then vpmaddwd   + vpmaddwd
//   avx512_vnni    vpdpbusd                    vpdpbusd on w + 128, minus     two planes
//                                              128 sum(x)
//   neon           smull + saddlp              the same                       smull + addp
//   neon_dot       sdot                        sdot                           two planes
#pragma once
#include "simd.h"

namespace vllm {
namespace VLLM_ISA {

VLLM_INLINE IVec load_bytes(const void* p) { return load_as<IVec>(p); }
// Four bytes, or two 16-bit values, in every lane.
VLLM_INLINE IVec broadcast4(const void* p) { return iset1(load_as<int32_t>(p)); }

// The low and the high nibble of every byte.
VLLM_INLINE IVec low_nibbles(IVec v) { return v & iset1(0x0f0f0f0f); }
VLLM_INLINE IVec high_nibbles(IVec v) {
  typedef uint32_t UVec __attribute__((vector_size(4 * kLanes)));
  return reinterpret_cast<IVec>(reinterpret_cast<UVec>(v) >> 4) & iset1(0x0f0f0f0f);
}

#if defined(__AVX512VNNI__) || defined(__ARM_FEATURE_DOTPROD)
constexpr bool kByteDots = true;    // four bytes at once: 16 bits are two planes
#else
constexpr bool kByteDots = false;
#endif

// Added to a stored q8 byte (modulo 256), so that vpdpbusd can take it as unsigned.
#if defined(__AVX512VNNI__)
constexpr uint8_t kByteBias = 128;
#else
constexpr uint8_t kByteBias = 0;
#endif

// What a sum of biased products starts from; `correction` is -128 times the sum of the activations.
VLLM_INLINE IVec correction(const int32_t* p) {
  if constexpr (kByteBias != 0) return iset1(*p);
  return izero();
}

#if defined(__AVX512F__)
typedef __m512i Raw;
#elif defined(__AVX2__)
typedef __m256i Raw;
#elif defined(__SSE2__)
typedef __m128i Raw;
#else
typedef int8x16_t Raw;
#endif
VLLM_INLINE Raw raw(IVec v) { return reinterpret_cast<Raw>(v); }

// Nibble sums: dot_u4 at most eight times from zero, then dot_u4_end. In 16 bits the sums are at
// most 8 * 2 * 15 * 127 = 30480.
// Byte weights: prepared once per vector, used for several activation rows. In 16 bits two products
// are at most 2 * 128 * 127 = 32512.

#if defined(__AVX512VNNI__)

VLLM_INLINE IVec dot_u4(IVec sum, IVec w, IVec x) {
  return reinterpret_cast<IVec>(_mm512_dpbusd_epi32(raw(sum), raw(w), raw(x)));
}
VLLM_INLINE IVec dot_u4_end(IVec sum) { return sum; }

struct ByteWeights { IVec biased; };
VLLM_INLINE ByteWeights byte_weights(IVec w) { return {w}; }
VLLM_INLINE IVec dot_s8(IVec sum, ByteWeights w, IVec x) { return dot_u4(sum, w.biased, x); }

#elif defined(__AVX512BW__)

VLLM_INLINE IVec dot_u4(IVec sum, IVec w, IVec x) {
  return reinterpret_cast<IVec>(_mm512_add_epi16(raw(sum), _mm512_maddubs_epi16(raw(w), raw(x))));
}
VLLM_INLINE IVec dot_u4_end(IVec sum) {
  return reinterpret_cast<IVec>(_mm512_madd_epi16(raw(sum), _mm512_set1_epi16(1)));
}

struct ByteWeights { Raw size; __mmask64 negative; };
VLLM_INLINE ByteWeights byte_weights(IVec w) {
  return {_mm512_abs_epi8(raw(w)), _mm512_movepi8_mask(raw(w))};
}
VLLM_INLINE IVec dot_s8(IVec sum, ByteWeights w, IVec x) {
  const Raw signed_x = _mm512_mask_sub_epi8(raw(x), w.negative, _mm512_setzero_si512(), raw(x));
  return sum + dot_u4_end(reinterpret_cast<IVec>(_mm512_maddubs_epi16(w.size, signed_x)));
}

#elif defined(__AVX2__)

VLLM_INLINE IVec dot_u4(IVec sum, IVec w, IVec x) {
  return reinterpret_cast<IVec>(_mm256_add_epi16(raw(sum), _mm256_maddubs_epi16(raw(w), raw(x))));
}
VLLM_INLINE IVec dot_u4_end(IVec sum) {
  return reinterpret_cast<IVec>(_mm256_madd_epi16(raw(sum), _mm256_set1_epi16(1)));
}

struct ByteWeights { Raw size, sign; };
VLLM_INLINE ByteWeights byte_weights(IVec w) { return {_mm256_abs_epi8(raw(w)), raw(w)}; }
VLLM_INLINE IVec dot_s8(IVec sum, ByteWeights w, IVec x) {
  const Raw signed_x = _mm256_sign_epi8(raw(x), w.sign);
  return sum + dot_u4_end(reinterpret_cast<IVec>(_mm256_maddubs_epi16(w.size, signed_x)));
}

#else

struct ByteWeights { IVec w; };
VLLM_INLINE ByteWeights byte_weights(IVec w) { return {w}; }

VLLM_INLINE IVec dot_s8(IVec sum, ByteWeights weights, IVec x) {
  const Raw w = raw(weights.w), v = raw(x);
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sum, w, v);
#elif defined(__ARM_NEON)
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(v)));
  const int32x4_t high = vpaddlq_s16(vmull_s8(vget_high_s8(w), vget_high_s8(v)));
  return sum + vpaddq_s32(low, high);
#else
  auto low = [](Raw b) { return _mm_srai_epi16(_mm_unpacklo_epi8(b, b), 8); };
  auto high = [](Raw b) { return _mm_srai_epi16(_mm_unpackhi_epi8(b, b), 8); };
  const __m128 a = _mm_castsi128_ps(_mm_madd_epi16(low(w), low(v)));
  const __m128 b = _mm_castsi128_ps(_mm_madd_epi16(high(w), high(v)));
  return sum + reinterpret_cast<IVec>(_mm_shuffle_ps(a, b, 0x88)) +
         reinterpret_cast<IVec>(_mm_shuffle_ps(a, b, 0xdd));
#endif
}

VLLM_INLINE IVec dot_u4(IVec sum, IVec w, IVec x) { return dot_s8(sum, {w}, x); }
VLLM_INLINE IVec dot_u4_end(IVec sum) { return sum; }

#endif

// Dots of the two planes of 16-bit activations as one: exact, up to 2^30.
VLLM_INLINE IVec join_planes(IVec high, IVec low) {
  return (high << 8) - (high << 1) + low;   // kHighStep = 254
}

// ---- 16-bit values ----------------------------------------------------------------------------

typedef uint16_t UWords __attribute__((vector_size(4 * kLanes)));
typedef int16_t Words __attribute__((vector_size(4 * kLanes)));

template <int n>
VLLM_INLINE IVec shift_words(IVec v) {
  return reinterpret_cast<IVec>(reinterpret_cast<UWords>(v) >> n);
}

// Bytes 0 and 2, or 1 and 3, of each lane.
VLLM_INLINE IVec even_bytes(IVec v) {
  return reinterpret_cast<IVec>(reinterpret_cast<Words>(reinterpret_cast<UWords>(v) << 8) >> 8);
}
VLLM_INLINE IVec odd_bytes(IVec v) {
  return reinterpret_cast<IVec>(reinterpret_cast<Words>(v) >> 8);
}

// Two products per lane.
VLLM_INLINE IVec dot_words(IVec sum, IVec w, IVec x) {
#if defined(__AVX512BW__)
  return sum + reinterpret_cast<IVec>(_mm512_madd_epi16(raw(w), raw(x)));
#elif defined(__AVX2__)
  return sum + reinterpret_cast<IVec>(_mm256_madd_epi16(raw(w), raw(x)));
#elif defined(__SSE2__)
  return sum + reinterpret_cast<IVec>(_mm_madd_epi16(raw(w), raw(x)));
#else
  const int16x8_t a = vreinterpretq_s16_s32(w), b = vreinterpretq_s16_s32(x);
  const int32x4_t low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
  return sum + vpaddq_s32(low, vmull_s16(vget_high_s16(a), vget_high_s16(b)));
#endif
}

}  // namespace VLLM_ISA
}  // namespace vllm
