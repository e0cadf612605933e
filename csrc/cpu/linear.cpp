// The linear op: picks the kernel of the weight's form.
#include "tile.h"

namespace vllm {
namespace VLLM_ISA {

void linear(const LinearArgs& a, const StepParams& step, int ith, int nth) {
  const int64_t rows = a.rows == Rows::tokens ? step.num_tokens : step.num_logits;
  switch (a.w->kind) {
    case WeightKind::q8: return linear_w8(a, step.wide, rows, ith, nth);
    case WeightKind::q4: return linear_w4(a, step.wide, rows, ith, nth);
    default: return linear_float(a, rows, ith, nth);
  }
}

}  // namespace VLLM_ISA
}  // namespace vllm
