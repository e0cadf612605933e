// Where the pieces of a packed weight are. One place for the packers and the kernels.
//
// float: [n / P][k][P], P = kFloatPanel columns.
// quantised: panels of L = kLanes output columns (one per lane); per panel, per group of k:
//
//   [ scale x L | min x L (if has_min) | values ]      scale, min: f16; f32 if the group is 16
//
//   q8 values: for j in 0 .. group/4:  L x 4 bytes; lane l has w[l][4j .. 4j+3]
//   q4 values: per 32 of k, for j in 0 .. 4:  L x 4 bytes; lane l has, in the low nibbles,
//              w[l][4j .. 4j+3] and in the high nibbles w[l][16 + 4j .. 16 + 4j + 3]
//
// So a vector of bytes is the operand of a dot product with four activations given to all lanes.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace vllm {
namespace VLLM_ISA {

// Output columns of a panel: one per lane if quantised, two vectors of them if float.
constexpr int64_t kQuantPanel = kLanes, kFloatPanel = 2 * kLanes;

struct QuantLayout {
  int64_t groups;        // per row
  int64_t scale_bytes;   // of one scale or min
  int64_t mins;          // offset of the mins in a group
  int64_t values;        // offset of the values
  int64_t group_bytes;
  int64_t panel_bytes;

  QuantLayout(WeightKind kind, int64_t group, bool has_min, int64_t k) {
    groups = (k + group - 1) / group;
    if (group == 16) groups = (groups + 1) / 2 * 2;   // whole groups of 32 activations
    scale_bytes = group == 16 ? 4 : 2;
    mins = scale_bytes * kLanes;
    values = mins * (has_min ? 2 : 1);
    group_bytes = values + group * kLanes / (kind == WeightKind::q4 ? 2 : 1);
    panel_bytes = groups * group_bytes;
  }
  explicit QuantLayout(const PackedWeight& w) : QuantLayout(w.kind, w.group, w.has_min, w.k) {}
};

VLLM_INLINE int64_t element_bytes(WeightKind kind) { return kind == WeightKind::f32 ? 4 : 2; }
VLLM_INLINE bool is_quantised(WeightKind kind) {
  return kind == WeightKind::q8 || kind == WeightKind::q4;
}
VLLM_INLINE int64_t panel_columns(WeightKind kind) {
  return is_quantised(kind) ? kQuantPanel : kFloatPanel;
}

}  // namespace VLLM_ISA
}  // namespace vllm
