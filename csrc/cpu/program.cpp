#include "program.h"

#include <stdexcept>

#include "attention.h"

namespace vllm {
namespace {

std::string str(int64_t value) { return std::to_string(value); }

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

void check_range(const std::string& what, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    fail(what + " is " + str(value) + "; it must be between " + str(low) + " and " + str(high));
  }
}

// Every value in [0, limit); the loop has no branch, so that it is vectorised.
template <class Int>
void check_indices(const char* what, const Int* values, int64_t n, int64_t limit) {
  using Unsigned = std::make_unsigned_t<Int>;
  const auto bound = static_cast<Unsigned>(limit);
  Unsigned bad = 0;
  for (int64_t i = 0; i < n; ++i) bad |= static_cast<Unsigned>(values[i]) >= bound ? 1 : 0;
  if (!bad) return;
  int64_t i = 0;
  while (static_cast<Unsigned>(values[i]) < bound) ++i;
  check_range(std::string(what) + "[" + str(i) + "]", values[i], 0, limit - 1);
}

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

struct SourceBlock { int64_t values, bytes; };

SourceBlock source_block(SourceType type) {
  switch (type) {
    case SourceType::f32: return {1, 4};
    case SourceType::f16: return {1, 2};
    case SourceType::bf16: return {1, 2};
    case SourceType::q4_0: return {32, 18};
    case SourceType::q4_1: return {32, 20};
    case SourceType::q5_0: return {32, 22};
    case SourceType::q5_1: return {32, 24};
    case SourceType::q8_0: return {32, 34};
    case SourceType::q4_k: return {256, 144};
    case SourceType::q5_k: return {256, 176};
    case SourceType::q6_k: return {256, 210};
  }
  fail("source type " + str(static_cast<int64_t>(type)) + " is unknown");
}

}  // namespace

// ---- weights ----------------------------------------------------------------------------------

int64_t source_row_bytes(SourceType type, int64_t k) {
  const SourceBlock block = source_block(type);
  if (k % block.values != 0) {
    fail("k is " + str(k) + "; this source type has blocks of " + str(block.values) + " values");
  }
  return k / block.values * block.bytes;
}

Weight::Weight(const KernelTable& kernels, WeightKind kind, int32_t group, bool has_min, int64_t n,
               int64_t k)
    : kernels_(kernels) {
  check_range("n", n, 1, kMaxDim);
  check_range("k", k, 1, kMaxDim);
  const bool quantised = kind == WeightKind::q8 || kind == WeightKind::q4;
  if (!quantised && (group != 0 || has_min)) fail("a float weight has no group and no min");
  const int64_t bytes = kernels.packed_bytes(kind, group, has_min, n, k);
  if (bytes <= 0) fail("no kernel for weights of this kind with group " + str(group));
  int64_t n_pad = n;   // as many rows as these bytes hold: whole panels
  while (kernels.packed_bytes(kind, group, has_min, n_pad + 1, k) == bytes) ++n_pad;
  memory_ = WeightMemory(static_cast<size_t>(bytes));
  packed_ = {kind, group, has_min, n, k, n_pad, memory_.data(), static_cast<size_t>(bytes)};
}

void Weight::pack(ThreadPool& pool, int64_t row0, int64_t n_rows, const void* src,
                  size_t src_bytes, SourceType type) {
  check_range("row0", row0, 0, packed_.n);
  check_range("n_rows", n_rows, 0, packed_.n - row0);
  const int64_t expected = source_row_bytes(type, packed_.k) * n_rows;
  if (static_cast<int64_t>(src_bytes) != expected) {
    fail("src has " + str(static_cast<int64_t>(src_bytes)) + " bytes; " + str(n_rows) +
         " rows of " + str(packed_.k) + " values have " + str(expected));
  }
  pool.run([&](int ith, int nth) {
    kernels_.pack_rows(packed_, row0, n_rows, src, type, ith, nth);
  });
}

void Weight::unpack(ThreadPool& pool, float* dst) const {
  pool.run([&](int ith, int nth) {
    const int64_t first = packed_.n * ith / nth, last = packed_.n * (ith + 1) / nth;
    kernels_.unpack_rows(packed_, first, last - first, dst + first * packed_.k);
  });
}

// ---- building ---------------------------------------------------------------------------------

Program::Program(const KernelTable& kernels, int64_t max_tokens, int64_t max_logits,
                 int64_t max_seqs, int32_t activation_bits)
    : kernels_(kernels), max_tokens_(max_tokens), max_logits_(max_logits), max_seqs_(max_seqs),
      wide_(activation_bits == 16) {
  if (activation_bits != 8 && activation_bits != 16) fail("activation_bits must be 8 or 16");
  check_range("max_tokens", max_tokens, 1, 1 << 24);
  check_range("max_logits", max_logits, 1, max_tokens);
  check_range("max_seqs", max_seqs, 1, max_tokens);
}

int64_t buffer_row_bytes(int64_t cols, BufferType type) {
  return type == BufferType::q8 ? q8_row_bytes(cols) : round_up(cols * 4, kCacheLine);
}

int64_t Program::add_buffer(Rows rows, int64_t cols, BufferType type,
                            std::optional<int64_t> offset) {
  if (built_) fail("a program that has run can't be extended");
  check_range("cols", cols, 1, 1 << 24);
  Buffer b{rows, cols, type, rows == Rows::tokens ? max_tokens_ : max_logits_,
           buffer_row_bytes(cols, type), offset.value_or(arena_bytes_)};
  check_range("offset_bytes", b.offset, 0, int64_t{1} << 46);
  if (b.offset % kCacheLine != 0) {
    fail("offset_bytes is " + str(b.offset) + "; it must be a multiple of 64");
  }
  arena_bytes_ = std::max(arena_bytes_, b.offset + b.bytes());
  buffers_.push_back(b);
  return static_cast<int64_t>(buffers_.size()) - 1;
}

int64_t Program::add_const(const float* data, std::vector<int64_t> shape) {
  int64_t size = 1;
  for (int64_t dim : shape) size *= dim;
  consts_.push_back(std::make_unique<Const>());
  consts_.back()->data.assign(data, data + size);
  consts_.back()->shape = std::move(shape);
  return static_cast<int64_t>(consts_.size()) - 1;
}

int64_t Program::add_weight(std::shared_ptr<const Weight> weight) {
  if (&weight->kernels() != &kernels_) {
    fail(std::string("the weight is packed for ") + weight->kernels().isa +
         ", the program runs on " + kernels_.isa);
  }
  weights_.push_back(std::move(weight));
  return static_cast<int64_t>(weights_.size()) - 1;
}

const Buffer& Program::buffer(int64_t id) const {
  check_range("buffer id", id, 0, static_cast<int64_t>(buffers_.size()) - 1);
  return buffers_[static_cast<size_t>(id)];
}

char* Program::buffer_data(int64_t id) {
  const Buffer& b = buffer(id);
  finish_building();
  return static_cast<char*>(arena_.data()) + b.offset;
}

void Program::finish_building() {
  if (built_) return;
  arena_ = Mapping(static_cast<size_t>(arena_bytes_));
  for (auto& set : arena_pointers_) set(static_cast<char*>(arena_.data()));
  arena_pointers_.clear();
  built_ = true;
}

// ---- KV cache ---------------------------------------------------------------------------------

void Program::bind_kv(int64_t num_blocks, int64_t block_size, int64_t num_tensors,
                      int64_t num_groups) {
  check_range("num_blocks", num_blocks, 1, kMaxDim - 1);
  check_range("block_size", block_size, 16, 1 << 16);
  if (block_size % 16 != 0) {
    fail("block_size is " + str(block_size) + "; it must be a multiple of 16");
  }
  check_range("num_tensors", num_tensors, 0, 1 << 16);
  check_range("num_groups", num_groups, 0, 1 << 16);
  std::vector<KvTensor> tensors(static_cast<size_t>(num_tensors));
  for (const KvUse& use : kv_uses_) {
    check_range(use.op + ": kv_tensor", use.tensor, 0, num_tensors - 1);
    check_range(use.op + ": group", use.group, 0, num_groups - 1);
    KvTensor& t = tensors[static_cast<size_t>(use.tensor)];
    if (t.head_dim != 0) {
      check_kv_use(use, t);
      continue;
    }
    t.kind = use.kind, t.num_kv_heads = use.num_kv_heads, t.head_dim = use.head_dim;
    const int64_t element_bytes = t.kind == WeightKind::f32 ? 4 : 2;
    const int64_t token_bytes = element_bytes * t.num_kv_heads * t.head_dim;
    int64_t bytes;
    if (__builtin_mul_overflow(num_blocks * block_size, token_bytes, &bytes)) {
      throw std::bad_alloc();
    }
    t.k = Mapping(static_cast<size_t>(bytes));
    t.v = Mapping(static_cast<size_t>(bytes));
  }
  for (const KvUse& use : kv_uses_) use.bind(tensors[static_cast<size_t>(use.tensor)]);
  kv_tensors_ = std::move(tensors);
  num_blocks_ = num_blocks, block_size_ = block_size, num_groups_ = num_groups;
}

void Program::check_kv_use(const KvUse& use, const KvTensor& t) const {
  const bool same_heads = use.num_kv_heads == t.num_kv_heads && use.head_dim == t.head_dim;
  if (use.kind == t.kind && same_heads) return;
  fail(use.op + ": kv_tensor " + str(use.tensor) + " is used with different types or head shapes");
}

const Program::KvTensor& Program::kv_tensor(int64_t index) const {
  check_range("kv tensor", index, 0, static_cast<int64_t>(kv_tensors_.size()) - 1);
  return kv_tensors_[static_cast<size_t>(index)];
}

// ---- running ----------------------------------------------------------------------------------

namespace {

// Sets a flag for a scope; a second holder is refused.
class Exclusive {
 public:
  explicit Exclusive(std::atomic<bool>& flag) : flag_(flag) {
    if (flag_.exchange(true)) fail("this program is already running in another thread");
  }
  ~Exclusive() { flag_ = false; }

 private:
  std::atomic<bool>& flag_;
};

}  // namespace

void Program::run(ThreadPool& pool, const StepParams& step, int64_t first, int64_t last) {
  Exclusive exclusive(running_);
  check_range("last", last, 0, num_ops());
  check_range("first", first, 0, last);
  check_step(step);
  if (step.num_tokens == 0 || first == last) return;
  finish_building();
  reserve_scratch(pool.size());
  StepParams params = step;
  params.wide = wide_;
  run_ops(pool, params, static_cast<size_t>(first), static_cast<size_t>(last));
}

void Program::run_ops(ThreadPool& pool, const StepParams& step, size_t first, size_t last) {
  const size_t begin = ops_[first].first_phase;
  const size_t end = last < ops_.size() ? ops_[last].first_phase : phases_.size();
  auto start = timing_ ? Clock::now() : Clock::time_point();
  pool.run_phases(
      static_cast<int>(end - begin),
      [&](int i, int ith, int nth) {
        const Phase& phase = phases_[begin + static_cast<size_t>(i)];
        phase.kernel(kernels_, ops_[phase.op].args.get(), step, ith, nth);
      },
      [&](int i) {
        if (timing_) start = measure(begin + static_cast<size_t>(i), start);
      });
}

Program::Clock::time_point Program::measure(size_t phase, Clock::time_point start) {
  Op& op = ops_[phases_[phase].op];
  const auto now = Clock::now();
  op.seconds += std::chrono::duration<double>(now - start).count();
  op.calls += phase == op.first_phase;
  return now;
}

void Program::reserve_scratch(int nth) {
  size_t bytes = 0;
  for (const AttentionArgs* a : attention_ops_) {
    bytes = std::max(bytes, attention_scratch_bytes(max_tokens_, a->num_heads, a->head_dim, nth));
  }
  if (bytes <= scratch_bytes_) return;
  scratch_ = Mapping(bytes);
  scratch_bytes_ = bytes;
  for (AttentionArgs* a : attention_ops_) {
    a->scratch = scratch_.data();
    a->scratch_bytes = bytes;
  }
}

size_t attention_scratch_bytes(int64_t, int32_t num_heads, int32_t head_dim, int nth) {
  return AttentionScratch::kCounterBytes + AttentionScratch::kPartialBytes +
         AttentionScratch(num_heads, head_dim).thread_bytes() * static_cast<size_t>(nth);
}

// ---- checks of one step -----------------------------------------------------------------------

void Program::check_step(const StepParams& step) const {
  check_range("the number of tokens", step.num_tokens, 0, max_tokens_);
  check_range("the number of logits_indices", step.num_logits, 0, max_logits_);
  check_range("the number of sequences", step.num_seqs, 0, max_seqs_);
  check_indices("token_ids", step.token_ids, step.num_tokens, vocab_rows_);
  check_indices("positions", step.positions, step.num_tokens, rope_positions_);
  check_indices("logits_indices", step.logits_indices, step.num_logits, step.num_tokens);
  const bool has_kv = !kv_uses_.empty();
  if (has_kv && num_blocks_ == 0) fail("the program has a KV cache: call bind_kv first");
  check_sequences(step);
  if (!has_kv) return;
  for (int64_t group = 0; group < num_groups_; ++group) check_kv_group(step, group);
}

void Program::check_sequences(const StepParams& step) const {
  const int64_t capacity = kv_uses_.empty() ? kMaxDim : step.max_blocks * block_size_;
  int64_t start = 0;
  for (int64_t s = 0; s < step.num_seqs; ++s) {
    check_range("query_start[" + str(s) + "]", step.query_start[s], start, start);
    check_range("query_start[" + str(s + 1) + "]", step.query_start[s + 1], start, step.num_tokens);
    const int64_t num_queries = step.query_start[s + 1] - start;
    check_range("seq_lens[" + str(s) + "]", step.seq_lens[s], num_queries, capacity);
    start = step.query_start[s + 1];
  }
  check_range("the end of query_start", start, step.num_tokens, step.num_tokens);
}

void Program::check_kv_group(const StepParams& step, int64_t group) const {
  check_indices("slot_mapping", step.slot_mapping[group], step.num_tokens,
                num_blocks_ * block_size_);
  const int32_t* table = step.block_tables[group];
  for (int64_t s = 0; s < step.num_seqs; ++s, table += step.max_blocks) {
    const int64_t used = (step.seq_lens[s] + block_size_ - 1) / block_size_;
    check_indices("block_tables", table, used, num_blocks_);
  }
}

// ---- timings ----------------------------------------------------------------------------------

void Program::set_timing(bool on) {
  Exclusive exclusive(running_);
  timing_ = on;
  for (Op& op : ops_) op.calls = 0, op.seconds = 0;
}

std::vector<OpTiming> Program::timings() const {
  std::vector<OpTiming> out;
  out.reserve(ops_.size());
  for (const Op& op : ops_) out.push_back({op.name, op.calls, op.seconds});
  return out;
}

}  // namespace vllm
