// Vectors of floats and the int8 dot product, one header for every ISA.
//
//   ISA            kLanes  registers   16-bit floats        u8 x s8 dot
//   baseline       4       16          in software          scalar (SSE2 is all that is assumed)
//   avx2           8       16          F16C                 vpmaddubsw + vpmaddwd
//   avx512         16      32          vcvtph2ps            vpmaddubsw + vpmaddwd
//   avx512_vnni    16      32          vcvtph2ps            vpdpbusd
//   neon           4       32          fcvt                 widening multiplies
//
// Vec is the compiler's own vector type, so + - * / work on it; fma is always explicit and the
// sources are compiled with -ffp-contract=off: what is fused does not depend on inlining.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__AVX2__) || defined(__SSE2__)
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
typedef uint8_t UBytes __attribute__((vector_size(4 * kLanes)));
typedef int16_t Words __attribute__((vector_size(4 * kLanes)));

#define VLLM_INLINE static inline __attribute__((always_inline))

// ---- load, store, set -------------------------------------------------------------------------

template <class T>
VLLM_INLINE T load_as(const void* p) { T v; __builtin_memcpy(&v, p, sizeof v); return v; }

VLLM_INLINE Vec load(const float* p) { return load_as<Vec>(p); }
VLLM_INLINE void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }
VLLM_INLINE Vec set1(float x) { return x - Vec{}; }   // x - 0 is x, also for -0
VLLM_INLINE Vec zero() { return Vec{}; }
VLLM_INLINE IVec iset1(int32_t x) { return x - IVec{}; }
VLLM_INLINE Vec to_float(IVec v) { return __builtin_convertvector(v, Vec); }
VLLM_INLINE IVec bits(Vec v) { return reinterpret_cast<IVec>(v); }
VLLM_INLINE Vec from_bits(IVec v) { return reinterpret_cast<Vec>(v); }
// mask lanes are 0 or -1
VLLM_INLINE Vec select(IVec mask, Vec yes, Vec no) {
  return from_bits((mask & bits(yes)) | (~mask & bits(no)));
}

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
#else
  return select(a > b, a, b);
#endif
}

VLLM_INLINE Vec min(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_min_ps(a, b);
#else
  return select(a < b, a, b);
#endif
}

VLLM_INLINE Vec abs(Vec a) { return from_bits(bits(a) & iset1(0x7fffffff)); }
VLLM_INLINE Vec copy_sign(Vec size, Vec sign) {
  return from_bits((bits(size) & iset1(0x7fffffff)) | (bits(sign) & iset1(INT32_MIN)));
}

// Lanes are combined by halves, so the order is the same in every kernel of an ISA.
VLLM_INLINE float reduce_add(Vec v) {
  float x[kLanes];
  store(x, v);
  for (int n = kLanes / 2; n > 0; n /= 2) for (int i = 0; i < n; ++i) x[i] += x[i + n];
  return x[0];
}

VLLM_INLINE float reduce_max(Vec v) {
  float x[kLanes];
  store(x, v);
  for (int n = kLanes / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) x[i] = x[i] > x[i + n] ? x[i] : x[i + n];
  }
  return x[0];
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
  const IVec out = bits(select(v == v, from_bits(rounded), from_bits(b | iset1(0x400000))));
  const Bits16 narrow = __builtin_convertvector((out >> 16) & iset1(0xffff), Bits16);
  __builtin_memcpy(p, &narrow, sizeof narrow);
}

// IEEE half by integer arithmetic, for ISAs without the instruction.
VLLM_INLINE float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t rest = static_cast<uint32_t>(h & 0x7fff) << 13;
  float f;
  if ((h & 0x7c00) == 0x7c00) {            // infinity, NaN
    const uint32_t b = rest + 0x70000000u;
    __builtin_memcpy(&f, &b, 4);
  } else {                                  // 2^112 moves the exponent, also of subnormals
    __builtin_memcpy(&f, &rest, 4);
    f *= 5.192296858534828e33f;
  }
  uint32_t b;
  __builtin_memcpy(&b, &f, 4);
  b |= sign;
  __builtin_memcpy(&f, &b, 4);
  return f;
}

VLLM_INLINE uint16_t float_to_half(float f) {
  uint32_t b;
  __builtin_memcpy(&b, &f, 4);
  const uint32_t sign = (b >> 16) & 0x8000;
  b &= 0x7fffffff;
  if (b > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (b >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (b < 0x38800000) {                     // subnormal: adding 0.5 lets the hardware round
    float size;
    __builtin_memcpy(&size, &b, 4);
    size += 0.5f;
    __builtin_memcpy(&b, &size, 4);
    return static_cast<uint16_t>(sign | (b - 0x3f000000));
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
  Vec v;
  for (int i = 0; i < kLanes; ++i) v[i] = half_to_float(p[i].bits);
  return v;
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
  float f;
  __builtin_memcpy(&f, &b, 4);
  return f;
}

// ---- functions --------------------------------------------------------------------------------

// e^x with a relative error below 2e-7: x = n ln 2 + r, a polynomial in r (Cephes expf), times 2^n.
// Below -87 the result is 0 exactly (so e^-inf is), above 88.7 infinity.
VLLM_INLINE Vec exp(Vec x) {
  const Vec clamped = max(set1(-87.0f), min(set1(88.8f), x));
  const Vec magic = set1(12582912.0f);      // 1.5 * 2^23: adding it rounds to an integer
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
  const Vec finite = select(x < set1(-87.0f), zero(), select(x > set1(88.8f), set1(1.0f / 0.0f), y));
  return select(x == x, finite, x);
}

VLLM_INLINE float exp1(float x) { return exp(set1(x))[0]; }

VLLM_INLINE Vec tanh(Vec x) {               // absolute error below 2e-7
  const Vec e = exp(set1(-2.0f) * abs(x));
  return copy_sign((set1(1.0f) - e) / (set1(1.0f) + e), x);
}

// ---- int8 dot ---------------------------------------------------------------------------------
// Each int32 lane gains the dot product of its four bytes; exact.

VLLM_INLINE IVec broadcast4(const int8_t* p) { return iset1(load_as<int32_t>(p)); }

#if !defined(__AVX512VNNI__) && !defined(__AVX2__)
VLLM_INLINE IVec dot_generic(IVec sum, IVec a, IVec b, bool a_unsigned) {
  const Bytes x = reinterpret_cast<Bytes>(a), y = reinterpret_cast<Bytes>(b);
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < 4; ++j) {
      const int32_t left = a_unsigned ? static_cast<uint8_t>(x[4 * i + j]) : x[4 * i + j];
      sum[i] += left * y[4 * i + j];
    }
  }
  return sum;
}
#endif

// Partial sums of up to eight u4 x s8 products: int16 lanes hold 8 * 2 * 15 * 127 = 30480.
// Finished by `dot_u4_end`. Where vpdpbusd exists the partial sums are already int32.
#if defined(__AVX512VNNI__)
VLLM_INLINE IVec dot_u4(IVec sum, IVec u, IVec s) {
  return reinterpret_cast<IVec>(_mm512_dpbusd_epi32(
      reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(u), reinterpret_cast<__m512i>(s)));
}
VLLM_INLINE IVec dot_u4_end(IVec sum) { return sum; }
#elif defined(__AVX512BW__)
VLLM_INLINE IVec dot_u4(IVec sum, IVec u, IVec s) {
  return reinterpret_cast<IVec>(_mm512_add_epi16(
      reinterpret_cast<__m512i>(sum),
      _mm512_maddubs_epi16(reinterpret_cast<__m512i>(u), reinterpret_cast<__m512i>(s))));
}
VLLM_INLINE IVec dot_u4_end(IVec sum) {
  return reinterpret_cast<IVec>(
      _mm512_madd_epi16(reinterpret_cast<__m512i>(sum), _mm512_set1_epi16(1)));
}
#elif defined(__AVX2__)
VLLM_INLINE IVec dot_u4(IVec sum, IVec u, IVec s) {
  return reinterpret_cast<IVec>(_mm256_add_epi16(
      reinterpret_cast<__m256i>(sum),
      _mm256_maddubs_epi16(reinterpret_cast<__m256i>(u), reinterpret_cast<__m256i>(s))));
}
VLLM_INLINE IVec dot_u4_end(IVec sum) {
  return reinterpret_cast<IVec>(
      _mm256_madd_epi16(reinterpret_cast<__m256i>(sum), _mm256_set1_epi16(1)));
}
#else
VLLM_INLINE IVec dot_u4(IVec sum, IVec u, IVec s) { return dot_generic(sum, u, s, true); }
VLLM_INLINE IVec dot_u4_end(IVec sum) { return sum; }
#endif

// A weight vector of s8, prepared once for many activation vectors.
// |w| <= 128 and |x| <= 127: two products are at most 32512 and fit in int16.
struct Signed8 {
#if defined(__AVX512BW__)
  __m512i size;
  __mmask64 negative;
  VLLM_INLINE Signed8 make(IVec w) {
    const __m512i v = reinterpret_cast<__m512i>(w);
    return {_mm512_abs_epi8(v), _mm512_movepi8_mask(v)};
  }
#elif defined(__AVX2__)
  __m256i size, sign;
  VLLM_INLINE Signed8 make(IVec w) {
    const __m256i v = reinterpret_cast<__m256i>(w);
    return {_mm256_abs_epi8(v), v};
  }
#else
  IVec w;
  VLLM_INLINE Signed8 make(IVec w) { return {w}; }
#endif
};

VLLM_INLINE IVec dot_s8(IVec sum, const Signed8& w, IVec x) {
#if defined(__AVX512BW__)
  const __m512i v = reinterpret_cast<__m512i>(x);
  const __m512i y = _mm512_mask_sub_epi8(v, w.negative, _mm512_setzero_si512(), v);
#if defined(__AVX512VNNI__)
  return reinterpret_cast<IVec>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), w.size, y));
#else
  const __m512i pairs = _mm512_maddubs_epi16(w.size, y);
  return sum + reinterpret_cast<IVec>(_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#endif
#elif defined(__AVX2__)
  const __m256i y = _mm256_sign_epi8(reinterpret_cast<__m256i>(x), w.sign);
  const __m256i pairs = _mm256_maddubs_epi16(w.size, y);
  return sum + reinterpret_cast<IVec>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#else
  return dot_generic(sum, w.w, x, false);
#endif
}

}  // namespace VLLM_ISA
}  // namespace vllm
