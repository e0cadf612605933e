// How each op of the step program is built. An argument is named as the field of its struct in
// kernels.h; strides, pointers and the kind of rows follow from the buffers.
#include "program_args.h"

namespace vllm {
namespace {

constexpr int64_t kMaxHeads = 1 << 14;
constexpr int64_t kMaxHeadDim = 1024;
constexpr auto kF32 = BufferType::f32;
constexpr auto kQ8 = BufferType::q8;

template <class Args, void (*KernelTable::*kernel)(const Args&, const StepParams&, int, int)>
void call(const KernelTable& kernels, const void* args, const StepParams& step, int ith, int nth) {
  (kernels.*kernel)(*static_cast<const Args*>(args), step, ith, nth);
}

bool is_quantised(const PackedWeight& w) {
  return w.kind == WeightKind::q8 || w.kind == WeightKind::q4;
}

// The float and the quantised output of an op; at least one is there.
struct Outputs { Span f32, q8; };

Outputs read_outputs(ArgReader& r, int64_t size) {
  const Outputs out{r.optional_span("out", kF32, size), r.optional_span("out_q8", kQ8, size)};
  if (!out.f32 && !out.q8) r.fail("out", "is missing (and out_q8, too)");
  return out;
}

int64_t add_embedding(ArgReader& r) {
  auto a = std::make_shared<EmbeddingArgs>();
  a->w = r.weight("w");
  const Span out = r.span("out", kF32, a->w->k);
  if (r.same_rows({out}) != Rows::tokens) r.fail("out", "must have token rows");
  r.bind(&a->out, out);
  a->out_stride = r.stride(out);
  a->scale = static_cast<float>(r.number("scale", 1.0));
  r.limit_token_ids(a->w->n);
  return r.commit(a, {call<EmbeddingArgs, &KernelTable::embedding>});
}

int64_t add_norm(ArgReader& r) {
  auto a = std::make_shared<NormArgs>();
  a->kind = static_cast<NormKind>(r.choice("kind", std::array{"rms", "layer"}, nullptr));
  a->size = r.integer("size", 1, kMaxDim);
  const Span x = r.span("x", kF32, a->size);
  const Outputs out = read_outputs(r, a->size);
  a->rows = r.same_rows({x, out.f32, out.q8});
  r.disjoint(x, out.q8);
  a->weight = r.vector("weight", a->size);
  a->bias = r.vector("bias", a->size);
  a->eps = static_cast<float>(r.number("eps", kRequired));
  r.bind(&a->x, x);
  r.bind(&a->out, out.f32);
  r.bind(&a->out_q8, out.q8);
  a->x_stride = r.stride(x), a->out_stride = r.stride(out.f32);
  return r.commit(a, {call<NormArgs, &KernelTable::norm>});
}

int64_t add_quantize(ArgReader& r) {
  auto a = std::make_shared<QuantizeArgs>();
  a->size = r.integer("size", 1, kMaxDim);
  const Span x = r.span("x", kF32, a->size), out = r.span("out_q8", kQ8, a->size);
  a->rows = r.same_rows({x, out});
  r.disjoint(x, out);
  r.bind(&a->x, x);
  r.bind(&a->out_q8, out);
  a->x_stride = r.stride(x);
  return r.commit(a, {call<QuantizeArgs, &KernelTable::quantize>});
}

int64_t add_linear(ArgReader& r) {
  auto a = std::make_shared<LinearArgs>();
  a->w = r.weight("w");
  const bool quantised = is_quantised(*a->w);
  const Span x = quantised ? r.span("x_q8", kQ8, a->w->k) : r.span("x", kF32, a->w->k);
  const Span out = r.span("out", kF32, a->w->n);
  const Span residual = r.optional_span("residual", kF32, a->w->n);
  a->rows = r.same_rows({x, out, residual});
  r.disjoint(x, out);
  a->bias = r.vector("bias", a->w->n);
  a->alpha = static_cast<float>(r.number("alpha", 1.0));
  if (quantised) {
    r.bind(&a->x_q8, x);
  } else {
    r.bind(&a->x, x);
    a->x_stride = r.stride(x);
  }
  r.bind(&a->residual, residual);
  r.bind(&a->out, out);
  a->residual_stride = r.stride(residual), a->out_stride = r.stride(out);
  return r.commit(a, {call<LinearArgs, &KernelTable::linear>});
}

// The head shape and the place in the KV cache, common to rope_cache and attention.
template <class Args>
void read_heads(ArgReader& r, Args& a) {
  a.num_heads = static_cast<int32_t>(r.integer("num_heads", 1, kMaxHeads));
  a.num_kv_heads = static_cast<int32_t>(r.integer("num_kv_heads", 1, a.num_heads));
  a.head_dim = static_cast<int32_t>(r.integer("head_dim", 8, kMaxHeadDim));
  if (a.num_heads % a.num_kv_heads != 0) r.fail("num_heads", "must be a multiple of num_kv_heads");
  if (a.head_dim % 8 != 0) r.fail("head_dim", "must be a multiple of 8");
  a.group = static_cast<int32_t>(r.integer("group", 0, kMaxHeads, 0));
  a.kv_kind = r.choice("kv_kind", std::array{"f32", "f16", "bf16"}, nullptr);
  r.bind_kv(r.integer("kv_tensor", 0, kMaxDim), a.group, static_cast<WeightKind>(a.kv_kind),
            a.num_kv_heads, a.head_dim, &a.k_cache, &a.v_cache);
}

void read_rope(ArgReader& r, RopeCacheArgs& a) {
  a.rot_dim = static_cast<int32_t>(r.integer("rot_dim", 0, a.head_dim, 0));
  if (a.rot_dim % 2 != 0) r.fail("rot_dim", "must be even");
  a.interleaved = r.flag("interleaved");
  int64_t positions = kMaxDim;
  a.cos_sin = r.table("cos_sin", a.rot_dim, &positions);
  if ((a.cos_sin != nullptr) != (a.rot_dim > 0)) r.fail("rot_dim", "and cos_sin go together");
  r.limit_positions(positions);
}

int64_t add_rope_cache(ArgReader& r) {
  auto a = std::make_shared<RopeCacheArgs>();
  read_heads(r, *a);
  const int64_t q_cols = int64_t{a->num_heads} * a->head_dim;
  const int64_t k_cols = int64_t{a->num_kv_heads} * a->head_dim;
  const Span qkv = r.span("qkv", kF32, q_cols + 2 * k_cols);
  if (r.same_rows({qkv}) != Rows::tokens) r.fail("qkv", "must have token rows");
  a->qk_norm =
      static_cast<QkNorm>(r.choice("qk_norm", std::array{"none", "per_head", "full"}, "none"));
  const bool full = a->qk_norm == QkNorm::full;
  a->q_norm = r.vector("q_norm", full ? q_cols : a->head_dim);
  a->k_norm = r.vector("k_norm", full ? k_cols : a->head_dim);
  const bool has_norm = a->qk_norm != QkNorm::none;
  if ((a->q_norm != nullptr) != has_norm || (a->k_norm != nullptr) != has_norm) {
    r.fail("q_norm and k_norm", "must be given exactly if qk_norm is not none");
  }
  a->eps = static_cast<float>(r.number("eps", has_norm ? kRequired : 0.0));
  read_rope(r, *a);
  r.bind(&a->qkv, qkv);
  a->qkv_stride = r.stride(qkv);
  return r.commit(a, {call<RopeCacheArgs, &KernelTable::rope_cache>});
}

int64_t add_attention(ArgReader& r) {
  auto a = std::make_shared<AttentionArgs>();
  read_heads(r, *a);
  const int64_t cols = int64_t{a->num_heads} * a->head_dim;
  const Span q = r.span("q", kF32, cols), out = r.span("out", kF32, cols);
  if (r.same_rows({q, out}) != Rows::tokens) r.fail("q", "must have token rows");
  r.disjoint(q, out);
  a->scale = static_cast<float>(r.number("scale", kRequired));
  a->softcap = static_cast<float>(r.number("softcap", 0.0));
  if (a->softcap < 0) r.fail("softcap", "must not be negative");
  a->window = static_cast<int32_t>(r.integer("window", 0, kMaxDim - 1, 0));
  a->sinks = r.vector("sinks", a->num_heads);
  r.bind(&a->q, q);
  r.bind(&a->out, out);
  a->q_stride = r.stride(q), a->out_stride = r.stride(out);
  r.use_scratch(a.get());
  return r.commit(a, {call<AttentionArgs, &KernelTable::attention>,
                      call<AttentionArgs, &KernelTable::attention_combine>});
}

int64_t add_act(ArgReader& r) {
  auto a = std::make_shared<ActArgs>();
  a->act = static_cast<Activation>(
      r.choice("act", std::array{"silu", "gelu", "gelu_tanh", "relu", "relu2"}, nullptr));
  a->gated = r.flag("gated");
  a->size = r.integer("size", 1, kMaxDim / 2);
  const Span x = r.span("x", kF32, a->gated ? 2 * a->size : a->size);
  const Outputs out = read_outputs(r, a->size);
  a->rows = r.same_rows({x, out.f32, out.q8});
  r.disjoint(x, out.q8);
  r.bind(&a->x, x);
  r.bind(&a->out, out.f32);
  r.bind(&a->out_q8, out.q8);
  a->x_stride = r.stride(x), a->out_stride = r.stride(out.f32);
  return r.commit(a, {call<ActArgs, &KernelTable::act>});
}

int64_t add_add(ArgReader& r) {
  auto a = std::make_shared<AddArgs>();
  a->size = r.integer("size", 1, kMaxDim);
  const Span x = r.span("a", kF32, a->size), y = r.span("b", kF32, a->size);
  const Span out = r.span("out", kF32, a->size);
  a->rows = r.same_rows({x, y, out});
  a->alpha = static_cast<float>(r.number("alpha", 1.0));
  r.bind(&a->a, x);
  r.bind(&a->b, y);
  r.bind(&a->out, out);
  a->a_stride = r.stride(x), a->b_stride = r.stride(y), a->out_stride = r.stride(out);
  return r.commit(a, {call<AddArgs, &KernelTable::add>});
}

int64_t add_gather(ArgReader& r) {
  auto a = std::make_shared<GatherArgs>();
  a->size = r.integer("size", 1, kMaxDim);
  const Span x = r.span("x", kF32, a->size), out = r.span("out", kF32, a->size);
  if (r.same_rows({x}) != Rows::tokens) r.fail("x", "must have token rows");
  if (r.same_rows({out}) != Rows::logits) r.fail("out", "must have logits rows");
  r.disjoint(x, out);
  r.bind(&a->x, x);
  r.bind(&a->out, out);
  a->x_stride = r.stride(x), a->out_stride = r.stride(out);
  return r.commit(a, {call<GatherArgs, &KernelTable::gather>});
}

int64_t add_logits(ArgReader& r) {
  auto a = std::make_shared<LogitsArgs>();
  a->size = r.integer("size", 1, kMaxDim);
  const Span x = r.span("x", kF32, a->size);
  if (r.same_rows({x}) != Rows::logits) r.fail("x", "must have logits rows");
  a->scale = static_cast<float>(r.number("scale", 1.0));
  a->softcap = static_cast<float>(r.number("softcap", 0.0));
  if (a->softcap < 0) r.fail("softcap", "must not be negative");
  r.bind(&a->x, x);
  a->x_stride = r.stride(x);
  return r.commit(a, {call<LogitsArgs, &KernelTable::logits>});
}

const std::map<std::string, int64_t (*)(ArgReader&)> kBuilders = {
    {"embedding", add_embedding}, {"norm", add_norm},           {"quantize", add_quantize},
    {"linear", add_linear},       {"rope_cache", add_rope_cache}, {"attention", add_attention},
    {"act", add_act},             {"add", add_add},             {"gather", add_gather},
    {"logits", add_logits},
};

}  // namespace

int64_t Program::add_op(const std::string& name, const ArgMap& args) {
  if (built_) throw std::invalid_argument("a program that has run can't be extended");
  const auto it = kBuilders.find(name);
  if (it == kBuilders.end()) throw std::invalid_argument("op '" + name + "' is unknown");
  ArgReader reader(*this, name, args);
  return it->second(reader);
}

}  // namespace vllm
