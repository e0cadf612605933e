// int8 weights (scale and perhaps min per group of 16, 32, 64 or 128) times activations of 16 or 8
// bits.
//
// One vector of weights at a time serves all rows, whose dots are live together: 8 or, with 16-bit
// activations, 16 dots + 8 sums + scale, min + weights and operand = 28 of 32.
#include "quant_tile.h"

namespace vllm {
namespace VLLM_ISA {
namespace {

template <int kBlockSize, bool kMin>
struct Int8 {
  static constexpr int kBlock = kBlockSize, kBlockBytes = kBlockSize * kLanes;
  static constexpr bool kHasMin = kMin;

  template <bool kWide, int R>
  VLLM_INLINE void dots(const uint8_t* values, const Q8Rows& x, int64_t k, IVec* dot) {
    if constexpr (kWide && !kByteDots) dot_of_words<R>(values, x, k, dot);
    else dot_of_bytes<kWide, R>(values, x, k, dot);
  }

 private:
  template <bool kWide, int R>
  VLLM_INLINE void dot_of_bytes(const uint8_t* values, const Q8Rows& x, int64_t k, IVec* dot) {
    IVec low[R];
    for (int r = 0; r < R; ++r) dot[r] = low[r] = izero();
    for (int j = 0; j < kBlock / 4; ++j) {
      const ByteWeights w = byte_weights(load_bytes(values + j * 4 * kLanes));
      for (int r = 0; r < R; ++r) {
        dot[r] = dot_s8(dot[r], w, broadcast4(x.bytes(r) + k + 4 * j));
        if constexpr (kWide) low[r] = dot_s8(low[r], w, broadcast4(x.low_bytes(r) + k + 4 * j));
      }
    }
    for (int r = 0; r < R; ++r) {
      if constexpr (kWide) dot[r] = join_planes(dot[r], low[r]);
      const int32_t* corrections = x.corrections(r) + k / 16;
      for (int i = 0; i < kBlock / 16; ++i) dot[r] = dot[r] + correction(corrections + i);
    }
  }

  template <int R>
  VLLM_INLINE void dot_of_words(const uint8_t* values, const Q8Rows& x, int64_t k, IVec* dot) {
    for (int r = 0; r < R; ++r) dot[r] = izero();
    for (int j = 0; j < kBlock / 4; ++j) {
      const IVec v = load_bytes(values + j * 4 * kLanes);
      const IVec even = even_bytes(v), odd = odd_bytes(v);
      for (int r = 0; r < R; ++r) {
        const int16_t* q = x.words(r) + k + 4 * j;
        dot[r] = dot_words(dot[r], even, broadcast4(q));
        dot[r] = dot_words(dot[r], odd, broadcast4(q + 2));
      }
    }
  }
};

}  // namespace

void linear_w8(const LinearArgs& a, bool wide, int64_t rows, int ith, int nth) {
  if (a.w->group == 16) return quant_linear<Int8<16, false>>(a, wide, rows, ith, nth);
  if (a.w->has_min) return quant_linear<Int8<32, true>>(a, wide, rows, ith, nth);
  quant_linear<Int8<32, false>>(a, wide, rows, ith, nth);
}

}  // namespace VLLM_ISA
}  // namespace vllm
