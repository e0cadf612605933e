// 4-bit weights (affine, groups of 32, 64 or 128) times activations of 16 or 8 bits.
//
// Four loads give the eight vectors of nibbles of a block of 32; they stay in registers for all rows
// of the tile: 8 nibbles + 8 sums + scale, min + a row's dot and operand = 20 of 32.
#include "quant_tile.h"

namespace vllm {
namespace VLLM_ISA {
namespace {

struct Nibbles {
  static constexpr int kBlock = 32, kBlockBytes = 16 * kLanes;
  static constexpr bool kHasMin = true;

  template <bool kWide, int R>
  VLLM_INLINE void dots(const uint8_t* values, const Q8Rows& x, int64_t k, IVec* dot) {
    IVec w[8];
    for (int j = 0; j < 4; ++j) {
      const IVec both = load_bytes(values + j * 4 * kLanes);
      w[j] = low_nibbles(both);
      w[j + 4] = high_nibbles(both);
    }
    for (int r = 0; r < R; ++r) {
      dot[r] = dot_block(w, x.high(r) + k);
      if constexpr (kWide) dot[r] = join_planes(dot[r], dot_block(w, x.low(r) + k));
    }
  }

 private:
  VLLM_INLINE IVec dot_block(const IVec* w, const int8_t* x) {
    IVec dot = izero();
    for (int j = 0; j < 8; ++j) dot = dot_u4(dot, w[j], broadcast4(x + 4 * j));
    return dot_u4_end(dot);
  }
};

}  // namespace

void linear_w4(const LinearArgs& a, bool wide, int64_t rows, int ith, int nth) {
  quant_linear<Nibbles>(a, wide, rows, ith, nth);
}

}  // namespace VLLM_ISA
}  // namespace vllm
