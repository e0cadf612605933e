// What a step program can compute, as plain data, and the table of kernels of one ISA.
//
// The kernel sources (gemm_*.cpp, attention.cpp, elementwise.cpp, cache.cpp, sampling.cpp, pack.cpp)
// are compiled once per ISA into a namespace of its own; each build fills one KernelTable.
// dispatch.cpp picks a table by cpuid at run time. Nothing else knows which ISA runs.
//
// A kernel is called once for each share `ith` of `nth`, by any thread of the pool and at the same
// time as the other shares; it does its static part of the work (whole output columns, rows or
// heads) and returns. An op starts when all shares of the op before it are done. No kernel
// allocates. Results never depend on nth, on the number of rows, or on which other rows are in the
// batch: each output element is accumulated in one fixed order.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace vllm {

// ---- weights --------------------------------------------------------------------------------

enum class WeightKind : int32_t { f32 = 0, f16 = 1, bf16 = 2, q8 = 3, q4 = 4 };

// A matrix W of n output rows by k input columns, packed for the kernels of the running ISA.
// Quantised kinds are affine per group of `group` consecutive k of one row:
//   w = scale * q (+ min if has_min);  q8: q in [-128, 127],  q4: q in [0, 15].
// Products are computed as  sum_g scale_w * scale_x * dot(q, x)  +  min * (scale_x * sum(x)).
struct PackedWeight {
  WeightKind kind;
  int32_t group;      // 0 for float kinds; 16 or 32 or 64 or 128
  int32_t has_min;
  int64_t n, k;       // logical size
  int64_t n_pad;      // rows, rounded up to the panel
  const void* data;   // 64-byte aligned
  size_t bytes;
};

// Types a packer can read (GGUF block types keep their GGUF meaning).
enum class SourceType : int32_t {
  f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k
};

// ---- activations ----------------------------------------------------------------------------

// One row of k activations quantised per 32 (k padded to a multiple of 32 with zeros):
//   [ q | float scale[k_pad/32] | float sum[k_pad/32] | int32 correction[k_pad/16] ]
//   x = scale * q,  sum = scale * sum(q),  correction = -128 * sum of 16 q
// 16 bits (the default): |q| <= 127 * 254, an error like that of float activations. ISAs with a dot
// product of four bytes hold it as two planes of bytes, int8 high[k_pad] and int8 low[k_pad] with
// q = 254 * high + low; the others as int16[k_pad], each four in the order 0, 2, 1, 3.
// 8 bits: int8[k_pad], |q| <= 127, in the same room.
// Rows are q8_row_bytes(k) apart (a multiple of 64).
constexpr int kQ8Group = 32;
constexpr int kHighStep = 254;
inline int64_t q8_padded(int64_t k) { return (k + kQ8Group - 1) / kQ8Group * kQ8Group; }
inline int64_t q8_row_bytes(int64_t k) {
  const int64_t kp = q8_padded(k);
  return (2 * kp + kp / kQ8Group * 16 + 63) / 64 * 64;
}

// ---- one step -------------------------------------------------------------------------------

// Dynamic sizes and inputs of one step; the program holds one and every op reads it.
struct StepParams {
  int64_t num_tokens;               // rows of "token" buffers
  int64_t num_logits;               // rows of "logits" buffers
  int64_t num_seqs;
  const int32_t* token_ids;         // [num_tokens]
  const int32_t* positions;         // [num_tokens]
  const int32_t* logits_indices;    // [num_logits] token row of each sampled position
  const int32_t* query_start;       // [num_seqs + 1] first token row of each sequence
  const int32_t* seq_lens;          // [num_seqs] tokens in the KV cache after this step
  int32_t num_groups;               // KV groups
  const int64_t* const* slot_mapping;  // [num_groups] -> [num_tokens] block * block_size + offset
  const int32_t* const* block_tables;  // [num_groups] -> [num_seqs, max_blocks]
  int64_t max_blocks;               // row stride of block_tables
  int32_t block_size;               // multiple of 16
  int32_t wide;                     // quantised activations have 16 bits, not 8
};

// ---- op arguments ---------------------------------------------------------------------------
// Pointers to row buffers are bases; strides are in elements (float) or bytes (q8).

enum class Rows : int32_t { tokens = 0, logits = 1 };

struct EmbeddingArgs { const PackedWeight* w; float* out; int64_t out_stride; float scale; };

enum class NormKind : int32_t { rms = 0, layer = 1 };
struct NormArgs {           // y = norm(x) * weight (+ bias), over `size` columns
  NormKind kind; Rows rows;
  const float* x; int64_t x_stride;
  const float* weight; const float* bias; float eps;   // weight, bias may be null
  int64_t size;
  float* out; int64_t out_stride;      // null if only the quantised form is wanted
  uint8_t* out_q8;                     // null if only the float form is wanted
};

struct QuantizeArgs { Rows rows; const float* x; int64_t x_stride; int64_t size; uint8_t* out_q8; };

struct LinearArgs {         // out[:, 0:n] = alpha * (x W^T + bias) + residual
  Rows rows;
  const PackedWeight* w;
  const float* x; int64_t x_stride;    // for float kinds
  const uint8_t* x_q8;                 // for quantised kinds
  const float* bias;                   // [n] or null
  float alpha;
  const float* residual; int64_t residual_stride;      // or null; may alias out
  float* out; int64_t out_stride;
};

enum class QkNorm : int32_t { none = 0, per_head = 1, full = 2 };
struct RopeCacheArgs {      // in place on qkv: q/k norm, rope; then writes k and v to the cache
  float* qkv; int64_t qkv_stride;      // row: [q heads | k heads | v heads] x head_dim
  int32_t num_heads, num_kv_heads, head_dim;
  QkNorm qk_norm; const float* q_norm; const float* k_norm; float eps;
  const float* cos_sin;                // [max_position, rot_dim]: cos[rot_dim/2] | sin[rot_dim/2]; null = no rope
  int32_t rot_dim; int32_t interleaved; // interleaved: pairs (2i, 2i+1); else (i, i + rot_dim/2)
  int32_t group; int32_t kv_kind;      // kv_kind: WeightKind f32, f16 or bf16
  void* k_cache;                       // [num_blocks, num_kv_heads, head_dim, block_size]
  void* v_cache;                       // [num_blocks, num_kv_heads, block_size, head_dim]
};

struct AttentionArgs {      // causal attention of each token over its sequence's cache
  const float* q; int64_t q_stride;    // [tokens, num_heads * head_dim] (first columns of qkv)
  int32_t num_heads, num_kv_heads, head_dim;
  float scale; float softcap;          // softcap 0 = off
  int32_t window;                      // 0 = full; else a token sees itself and window-1 before it
  const float* sinks;                  // [num_heads] or null: an extra logit in the denominator
  int32_t group; int32_t kv_kind;
  const void* k_cache; const void* v_cache;
  float* out; int64_t out_stride;      // [tokens, num_heads * head_dim]
  void* scratch; size_t scratch_bytes; // for partial results; sized by attention_scratch_bytes
};

enum class Activation : int32_t { silu = 0, gelu = 1, gelu_tanh = 2, relu = 3, relu2 = 4 };
struct ActArgs {            // gated: out = act(x[:, :size]) * x[:, size:2*size]; else act(x)
  Activation act; int32_t gated; Rows rows;
  const float* x; int64_t x_stride; int64_t size;
  float* out; int64_t out_stride; uint8_t* out_q8;     // either may be null
};

struct AddArgs { Rows rows; const float* a; const float* b; float alpha; int64_t size;   // out = a + alpha*b
                 int64_t a_stride, b_stride; float* out; int64_t out_stride; };

struct GatherArgs { const float* x; int64_t x_stride; int64_t size; float* out; int64_t out_stride; };

struct LogitsArgs {         // in place: x = softcap * tanh(scale * x / softcap), or scale * x
  float* x; int64_t x_stride; int64_t size; float scale; float softcap;
};

// ---- the table ------------------------------------------------------------------------------

struct SampleArgs;  // sampling.h

struct KernelTable {
  const char* isa;
  void (*embedding)(const EmbeddingArgs&, const StepParams&, int ith, int nth);
  void (*norm)(const NormArgs&, const StepParams&, int ith, int nth);
  void (*quantize)(const QuantizeArgs&, const StepParams&, int ith, int nth);
  void (*linear)(const LinearArgs&, const StepParams&, int ith, int nth);
  void (*rope_cache)(const RopeCacheArgs&, const StepParams&, int ith, int nth);
  void (*attention)(const AttentionArgs&, const StepParams&, int ith, int nth);
  void (*attention_combine)(const AttentionArgs&, const StepParams&, int ith, int nth);
  void (*act)(const ActArgs&, const StepParams&, int ith, int nth);
  void (*add)(const AddArgs&, const StepParams&, int ith, int nth);
  void (*gather)(const GatherArgs&, const StepParams&, int ith, int nth);
  void (*logits)(const LogitsArgs&, const StepParams&, int ith, int nth);
  // Packing: bytes needed, then fill rows [row0, row0 + n_rows) from `src` (row-major source rows).
  int64_t (*packed_bytes)(WeightKind kind, int32_t group, int32_t has_min, int64_t n, int64_t k);
  void (*pack_rows)(const PackedWeight& dst, int64_t row0, int64_t n_rows,
                    const void* src, SourceType type, int ith, int nth);
  // The inverse, for tests and for the reference executor: row-major float.
  void (*unpack_rows)(const PackedWeight& src, int64_t row0, int64_t n_rows, float* dst);
  // One row of a sampling step (sampling.cpp).
  void (*sample)(const SampleArgs&, int ith, int nth);
};

// Tables that this CPU can run, best first.
std::vector<const KernelTable*> supported_kernels();
const KernelTable* best_kernels();
const KernelTable* kernels_by_name(const char* isa);   // null if unknown or not supported here
size_t attention_scratch_bytes(int64_t max_tokens, int32_t num_heads, int32_t head_dim, int nth);

}  // namespace vllm
