// Vectors of floats and of int32, one header for every ISA; int8 dot products are in dot.h.
//
//   ISA            kLanes  registers   16-bit floats
//   baseline       4       16          in software (SSE2 is all that is assumed)
//   avx2           8       16          F16C
//   avx512(_vnni)  16      32          vcvtph2ps
//   neon(_dot)     4       32          fcvt
//
// Vec is the compiler's own vector type, so + - * / work on it; fma is always explicit and the
// sources are compiled with -ffp-contract=off: what is fused does not depend on inlining.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace vllm {
namespace VLLM_ISA {

struct Half { uint16_t bits; };
struct BFloat { uint16_t bits; };

#if defined(__AVX512F__)
constexpr int kLanes = 16, kVectorRegisters = 32;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kVectorRegisters = 16;
#elif defined(__ARM_NEON)
constexpr int kLanes = 4, kVectorRegisters = 32;
#else
constexpr int kLanes = 4, kVectorRegisters = 16;
#endif

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef int32_t IVec __attribute__((vector_size(4 * kLanes)));
typedef int8_t Bytes __attribute__((vector_size(4 * kLanes)));

#define VLLM_INLINE static inline __attribute__((always_inline))

// ---- load, store, set -------------------------------------------------------------------------

template <class T>
VLLM_INLINE T load_as(const void* p) { T v; __builtin_memcpy(&v, p, sizeof v); return v; }

VLLM_INLINE Vec load(const float* p) { return load_as<Vec>(p); }
VLLM_INLINE void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }
VLLM_INLINE Vec zero() { return Vec{}; }
VLLM_INLINE IVec izero() { return IVec{}; }

VLLM_INLINE Vec set1(float x) {
#if defined(__AVX512F__)
  return _mm512_set1_ps(x);
#elif defined(__AVX2__)
  return _mm256_set1_ps(x);
#else
  return Vec{x, x, x, x};
#endif
}

VLLM_INLINE IVec iset1(int32_t x) {
#if defined(__AVX512F__)
  return reinterpret_cast<IVec>(_mm512_set1_epi32(x));
#elif defined(__AVX2__)
  return reinterpret_cast<IVec>(_mm256_set1_epi32(x));
#else
  return IVec{x, x, x, x};
#endif
}

VLLM_INLINE IVec bits(Vec v) { return reinterpret_cast<IVec>(v); }
VLLM_INLINE Vec from_bits(IVec v) { return reinterpret_cast<Vec>(v); }
VLLM_INLINE Vec to_float(IVec v) { return __builtin_convertvector(v, Vec); }

// mask lanes are 0 or -1
VLLM_INLINE IVec select(IVec mask, IVec yes, IVec no) { return (mask & yes) | (~mask & no); }
VLLM_INLINE Vec select(IVec mask, Vec yes, Vec no) {
  return from_bits(select(mask, bits(yes), bits(no)));
}

// ---- arithmetic -------------------------------------------------------------------------------

VLLM_INLINE Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

VLLM_INLINE Vec max(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#elif defined(__SSE2__)
  return _mm_max_ps(a, b);
#else
  return select(a > b, a, b);
#endif
}

VLLM_INLINE Vec min(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_min_ps(a, b);
#elif defined(__SSE2__)
  return _mm_min_ps(a, b);
#else
  return select(a < b, a, b);
#endif
}

VLLM_INLINE IVec imax(IVec a, IVec b) {
#if defined(__AVX512F__)
  return reinterpret_cast<IVec>(
      _mm512_max_epi32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<IVec>(
      _mm256_max_epi32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
  return select(a > b, a, b);
#endif
}

VLLM_INLINE Vec abs(Vec a) { return from_bits(bits(a) & iset1(0x7fffffff)); }
VLLM_INLINE Vec copy_sign(Vec size, Vec sign) {
  return from_bits((bits(size) & iset1(0x7fffffff)) | (bits(sign) & iset1(INT32_MIN)));
}

// ---- across lanes -----------------------------------------------------------------------------
// Lanes are combined by halves, so the order is the same in every kernel of an ISA.

typedef float Vec4 __attribute__((vector_size(16)));
typedef int32_t IVec4 __attribute__((vector_size(16)));

// Halves a vector down to four lanes with `op`, then those in order (0, 2), (1, 3), then both.
template <class V4, class V, class Op>
VLLM_INLINE auto reduce_lanes(V v, Op op) {
  V4 quarter[kLanes / 4];
  __builtin_memcpy(quarter, &v, sizeof v);
  for (int n = kLanes / 8; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) quarter[i] = op(quarter[i], quarter[i + n]);
  }
  const V4 q = quarter[0];
  const V4 two = op(q, V4{q[2], q[3], q[0], q[1]});
  return op(two, V4{two[1], two[0], two[3], two[2]})[0];
}

VLLM_INLINE float reduce_add(Vec v) {
  return reduce_lanes<Vec4>(v, [](Vec4 a, Vec4 b) { return a + b; });
}
VLLM_INLINE float reduce_max(Vec v) {
  return reduce_lanes<Vec4>(v, [](Vec4 a, Vec4 b) { return a > b ? a : b; });
}
VLLM_INLINE int32_t reduce_add(IVec v) {
  return reduce_lanes<IVec4>(v, [](IVec4 a, IVec4 b) { return a + b; });
}
VLLM_INLINE int32_t reduce_max(IVec v) {
  return reduce_lanes<IVec4>(v, [](IVec4 a, IVec4 b) { return a > b ? a : b; });
}

// ---- 16-bit floats ----------------------------------------------------------------------------

typedef uint16_t Bits16 __attribute__((vector_size(2 * kLanes)));

VLLM_INLINE Vec load(const BFloat* p) {
  return from_bits(__builtin_convertvector(load_as<Bits16>(p), IVec) << 16);
}

// Round to nearest even; NaN stays NaN.
VLLM_INLINE void store(BFloat* p, Vec v) {
  const IVec b = bits(v);
  const IVec rounded = b + iset1(0x7fff) + ((b >> 16) & iset1(1));
  const IVec out = select(v == v, rounded, b | iset1(0x400000));
  const Bits16 narrow = __builtin_convertvector((out >> 16) & iset1(0xffff), Bits16);
  __builtin_memcpy(p, &narrow, sizeof narrow);
}

// IEEE half by integer arithmetic, for single values and for ISAs without the instruction.
VLLM_INLINE float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  uint32_t b = static_cast<uint32_t>(h & 0x7fff) << 13;
  if ((h & 0x7c00) == 0x7c00) {            // infinity, NaN
    b |= 0x7f800000u;
  } else {                                  // 2^112 moves the exponent, also of subnormals
    const float f = load_as<float>(&b) * 0x1p112f;
    b = load_as<uint32_t>(&f);
  }
  b |= sign;
  return load_as<float>(&b);
}

VLLM_INLINE uint16_t float_to_half(float f) {
  uint32_t b = load_as<uint32_t>(&f);
  const uint32_t sign = (b >> 16) & 0x8000;
  b &= 0x7fffffff;
  if (b > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (b >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);   // rounds to 65536
  if (b < 0x38800000) {                     // subnormal: adding 0.5 lets the hardware round
    const float size = load_as<float>(&b) + 0.5f;
    return static_cast<uint16_t>(sign | (load_as<uint32_t>(&size) - 0x3f000000));
  }
  b += 0xfff + ((b >> 13) & 1);
  return static_cast<uint16_t>(sign | ((b - 0x38000000) >> 13));
}

VLLM_INLINE Vec load(const Half* p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(load_as<__m256i>(p));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(load_as<__m128i>(p));
#elif defined(__ARM_NEON)
  return vcvt_f32_f16(load_as<float16x4_t>(p));
#else
  // The same steps as half_to_float, on vectors.
  const IVec h = __builtin_convertvector(load_as<Bits16>(p), IVec);
  const IVec rest = (h & iset1(0x7fff)) << 13;
  const IVec special = rest >= iset1(0x7c00 << 13);
  const IVec finite = bits(from_bits(rest) * set1(0x1p112f));
  return from_bits(select(special, rest | iset1(0x7f800000), finite) | ((h & iset1(0x8000)) << 16));
#endif
}

VLLM_INLINE void store(Half* p, Vec v) {
#if defined(__AVX512F__)
  const __m256i h = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
  const __m128i h = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__ARM_NEON)
  const float16x4_t h = vcvt_f16_f32(v);
#else
  Half h[kLanes];
  for (int i = 0; i < kLanes; ++i) h[i].bits = float_to_half(v[i]);
#endif
  __builtin_memcpy(p, &h, sizeof h);
}

VLLM_INLINE float widen(float x) { return x; }
VLLM_INLINE float widen(Half x) { return half_to_float(x.bits); }
VLLM_INLINE float widen(BFloat x) {
  const uint32_t b = static_cast<uint32_t>(x.bits) << 16;
  return load_as<float>(&b);
}

// The low byte of each lane.
VLLM_INLINE void store_bytes(int8_t* p, IVec v) {
  typedef int8_t Narrow __attribute__((vector_size(kLanes)));
  const Narrow narrow = __builtin_convertvector(v, Narrow);
  __builtin_memcpy(p, &narrow, sizeof narrow);
}

VLLM_INLINE void store_words(int16_t* p, IVec v) {
  typedef int16_t Narrow __attribute__((vector_size(2 * kLanes)));
  const Narrow narrow = __builtin_convertvector(v, Narrow);
  __builtin_memcpy(p, &narrow, sizeof narrow);
}

// Each four lanes in the order 0, 2, 1, 3.
VLLM_INLINE IVec swap_middle(IVec v) {
#if defined(__AVX512F__)
  return reinterpret_cast<IVec>(
      _mm512_shuffle_epi32(reinterpret_cast<__m512i>(v), static_cast<_MM_PERM_ENUM>(0xd8)));
#elif defined(__AVX2__)
  return reinterpret_cast<IVec>(_mm256_shuffle_epi32(reinterpret_cast<__m256i>(v), 0xd8));
#else
  return IVec{v[0], v[2], v[1], v[3]};
#endif
}

// ---- functions --------------------------------------------------------------------------------

// Adding it rounds a float of less than 2^22 to an integer (nearest even), in the low bits.
constexpr float kRoundMagic = 12582912.0f;   // 1.5 * 2^23

// e^x with a relative error below 2e-7: x = n ln 2 + r, a polynomial in r (Cephes expf), times 2^n.
// Below -87 the result is 0 exactly (so e^-inf is), above 88.7 infinity.
VLLM_INLINE Vec exp(Vec x) {
  const Vec clamped = max(set1(-87.0f), min(set1(88.8f), x));
  const Vec magic = set1(kRoundMagic);
  const Vec shifted = fma(clamped, set1(1.44269504088896341f), magic);
  const Vec n = shifted - magic;
  Vec r = fma(n, set1(-0.693359375f), clamped);
  r = fma(n, set1(2.12194440e-4f), r);
  Vec p = fma(set1(1.9875691500e-4f), r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p * r, r, r + set1(1.0f));
  // 2^n in two steps, so that n = 128 does not overflow before the product does.
  const IVec i = bits(shifted) - bits(magic);
  const IVec half = i >> 1;
  const Vec a = from_bits((half + iset1(127)) << 23), b = from_bits((i - half + iset1(127)) << 23);
  const Vec y = p * a * b;
  const Vec finite = select(x < set1(-87.0f), zero(),
                            select(x > set1(88.8f), set1(__builtin_inff()), y));
  return select(x == x, finite, x);
}

VLLM_INLINE float exp1(float x) { return exp(set1(x))[0]; }

VLLM_INLINE Vec tanh(Vec x) {               // absolute error below 2e-7
  const Vec e = exp(set1(-2.0f) * abs(x));
  return copy_sign((set1(1.0f) - e) / (set1(1.0f) + e), x);
}

}  // namespace VLLM_ISA
}  // namespace vllm
