// What each ISA's build of the kernel sources defines, under its namespace.
#pragma once
#include "kernels.h"

namespace vllm {
namespace VLLM_ISA {

void embedding(const EmbeddingArgs&, const StepParams&, int ith, int nth);
void norm(const NormArgs&, const StepParams&, int ith, int nth);
void quantize(const QuantizeArgs&, const StepParams&, int ith, int nth);
void linear(const LinearArgs&, const StepParams&, int ith, int nth);
void rope_cache(const RopeCacheArgs&, const StepParams&, int ith, int nth);
void attention(const AttentionArgs&, const StepParams&, int ith, int nth);
void attention_combine(const AttentionArgs&, const StepParams&, int ith, int nth);
void act(const ActArgs&, const StepParams&, int ith, int nth);
void add(const AddArgs&, const StepParams&, int ith, int nth);
void gather(const GatherArgs&, const StepParams&, int ith, int nth);
void logits(const LogitsArgs&, const StepParams&, int ith, int nth);
int64_t packed_bytes(WeightKind kind, int32_t group, int32_t has_min, int64_t n, int64_t k);
void pack_rows(const PackedWeight& dst, int64_t row0, int64_t n_rows, const void* src,
               SourceType type, int ith, int nth);
void unpack_rows(const PackedWeight& src, int64_t row0, int64_t n_rows, float* dst);
void sample(const SampleArgs&, int ith, int nth);

}  // namespace VLLM_ISA
}  // namespace vllm
