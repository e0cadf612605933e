// 4-bit weights (affine, groups of 32, 64 or 128) times activations of 16 or 8 bits.
//
// Four loads give the eight vectors of nibbles of a block of 32; they stay in registers for all rows
// of the tile: 8 nibbles + 8 sums + scale, min + a row's dot and operand = 20 of 32. Pairs of 16-bit
// values go through all rows one after the other: R dots + R sums + scale, min + pair and operand.
#include "quant_tile.h"

namespace vllm {
namespace VLLM_ISA {
namespace {

struct Nibbles {
  static constexpr int kBlock = 32, kBlockBytes = 16 * kLanes;
  static constexpr bool kHasMin = true;

  template <bool kWide, int R>
  VLLM_INLINE void dots(const uint8_t* values, const Q8Rows& x, int64_t k, IVec* dot) {
    if constexpr (kWide && !kByteDots) dot_of_words<R>(values, x, k, dot);
    else dot_of_bytes<kWide, R>(values, x, k, dot);
  }

 private:
  template <bool kWide, int R>
  VLLM_INLINE void dot_of_bytes(const uint8_t* values, const Q8Rows& x, int64_t k, IVec* dot) {
    IVec w[8];
    for (int j = 0; j < 4; ++j) {
      const IVec both = load_bytes(values + j * 4 * kLanes);
      w[j] = low_nibbles(both);
      w[j + 4] = high_nibbles(both);
    }
    for (int r = 0; r < R; ++r) {
      dot[r] = dot_block(w, x.bytes(r) + k);
      if constexpr (kWide) dot[r] = join_planes(dot[r], dot_block(w, x.low_bytes(r) + k));
    }
  }

  VLLM_INLINE IVec dot_block(const IVec* w, const int8_t* x) {
    IVec dot = izero();
    for (int j = 0; j < 8; ++j) dot = dot_u4(dot, w[j], broadcast4(x + 4 * j));
    return dot_u4_end(dot);
  }

  // Bytes 0 and 2 of a lane hold k, k + 2 and k + 16, k + 18; bytes 1 and 3 the odd ones.
  template <int R>
  VLLM_INLINE void dot_of_words(const uint8_t* values, const Q8Rows& x, int64_t k, IVec* dot) {
    const IVec mask = iset1(0x000f000f);
    for (int r = 0; r < R; ++r) dot[r] = izero();
    for (int j = 0; j < 4; ++j) {
      const IVec v = load_bytes(values + j * 4 * kLanes);
      add_pairs<R>(v & mask, x, k + 4 * j, dot);
      add_pairs<R>(shift_words<8>(v) & mask, x, k + 4 * j + 2, dot);
      add_pairs<R>(shift_words<4>(v) & mask, x, k + 16 + 4 * j, dot);
      add_pairs<R>(shift_words<12>(v), x, k + 16 + 4 * j + 2, dot);
    }
  }

  template <int R>
  VLLM_INLINE void add_pairs(IVec w, const Q8Rows& x, int64_t i, IVec* dot) {
    for (int r = 0; r < R; ++r) dot[r] = dot_words(dot[r], w, broadcast4(x.words(r) + i));
  }
};

}  // namespace

void linear_w4(const LinearArgs& a, bool wide, int64_t rows, int ith, int nth) {
  quant_linear<Nibbles>(a, wide, rows, ith, nth);
}

}  // namespace VLLM_ISA
}  // namespace vllm
