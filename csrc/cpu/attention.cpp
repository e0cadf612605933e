// Causal attention over the paged KV cache, decode and prefill with the same arithmetic.
//
//   K block [head_dim][block_size]: scores of a vector of keys, one FMA per head_dim
//   V block [block_size][head_dim]: a vector of outputs, one FMA per key
//
// A work item is a tile of query rows (tokens x the query heads of one KV head, so that K and V are
// read once for all of them) over its keys. Keys are cut into chunks of 256 at fixed positions; a
// chunk gives a record (largest score m, sum of exp l, output o), and the records of a row are
// merged from left to right. With few items the chunks are spread over the threads instead, and
// the records merged in a second phase.
//
// What makes a row's bits depend on nothing but its own query, position and cache: a score is one
// chain of FMAs over head_dim, an output one chain over the keys of the chunk, the sum of exp one
// chain per lane of the chunk; keys that a row may not see contribute exact zeros; chunk borders
// are absolute. Neither the tile, nor the block size, nor who computes what enters.
//
// Registers of the inner tiles (rows x vectors): 8 x 2 or 4 x 4 = 16 sums + 4 + 1 of 32;
// 6 x 2 or 3 x 4 = 12 sums + 2 + 1 of 16.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "attention_plan.h"
#include "simd.h"

namespace vllm {
namespace VLLM_ISA {
namespace {

constexpr int kChunk = kAttentionChunk;
constexpr int kMaxRows = kVectorRegisters >= 32 ? 8 : 6;
constexpr int kFewRows = kMaxRows / 2;   // so few that four vectors fit beside them
static_assert(kMaxRows <= kAttentionMaxRows);
static_assert(kLanes <= 16, "keys come in multiples of 16");

// ---- records ----------------------------------------------------------------------------------
// A record is m, l and the output from kOutput on. m = -inf: the row sees no key of the chunk.

constexpr int kMax = 0, kSum = 1, kOutput = 16;

void merge(float* into, const float* from, int64_t dim) {
  if (from[kMax] == -INFINITY) return;
  if (into[kMax] == -INFINITY) {
    std::copy(from, from + kOutput + dim, into);
    return;
  }
  const float top = std::max(into[kMax], from[kMax]);
  const float keep = exp1(into[kMax] - top), take = exp1(from[kMax] - top);
  into[kMax] = top;
  into[kSum] = into[kSum] * keep + from[kSum] * take;
  const Vec vkeep = set1(keep), vtake = set1(take);
  for (int64_t d = kOutput; d < kOutput + dim; d += kLanes) {
    store(into + d, fma(load(into + d), vkeep, load(from + d) * vtake));
  }
}

// Divides by the sum (with the sink of the head, if any). Adding zero makes -0 and 0 the same bits:
// which one a sum of zeros is depends on the keys that were skipped.
void write_output(const AttentionArgs& a, const float* record, int64_t head, float* out) {
  float keep = 1.0f, sum = record[kSum];
  if (a.sinks != nullptr) {
    const float top = std::max(record[kMax], a.sinks[head]);
    keep = exp1(record[kMax] - top);
    sum = sum * keep + exp1(a.sinks[head] - top);
  }
  const float factor = keep / sum;
  for (int64_t d = 0; d < a.head_dim; ++d) out[d] = record[kOutput + d] * factor + 0.0f;
}

// ---- inner tiles ------------------------------------------------------------------------------

// Calls fn(vectors, offset) so that the tiles cover [0, n); n is a multiple of a vector. Two or, if
// the rows leave registers for it, four vectors at a time.
template <int R, class Fn>
void cover(int64_t n, Fn fn) {
  int64_t i = 0;
  if constexpr (R <= kFewRows) {
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) fn(std::integral_constant<int, 4>(), i);
  }
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) fn(std::integral_constant<int, 2>(), i);
  for (; i < n; i += kLanes) fn(std::integral_constant<int, 1>(), i);
}

// Consecutive keys of one block, or the staged chunk: keys [start, start + n) of the chunk.
template <class T>
struct Segment { const T* k; int64_t k_stride; const T* v; int64_t start, n; };

// s[r][0..n) = q[r] . k[:, 0..n), n rounded up to 16: a block holds whole sixteens.
template <int R, class T>
void score_rows(const float* q, int64_t q_stride, const Segment<T>& seg, int64_t head_dim,
                float* s) {
  cover<R>(round_up16(seg.n), [&](auto vectors, int64_t i) {
    constexpr int V = decltype(vectors)::value;
    Vec sum[R][V];
    for (int r = 0; r < R; ++r) for (int v = 0; v < V; ++v) sum[r][v] = zero();
    const T* k = seg.k + i;
    for (int64_t d = 0; d < head_dim; ++d, k += seg.k_stride) {
      Vec key[V];
      for (int v = 0; v < V; ++v) key[v] = load(k + v * kLanes);
      for (int r = 0; r < R; ++r) {
        const Vec query = set1(q[r * q_stride + d]);
        for (int v = 0; v < V; ++v) sum[r][v] = fma(query, key[v], sum[r][v]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) store(s + r * kChunk + i + v * kLanes, sum[r][v]);
    }
  });
}

// out[r] = sum over the keys of all segments of p[r][key] * v[key]. A vector may reach beyond
// head_dim: the lanes there are never used, and the memory of the cache has a tail.
template <int R, class T>
void value_rows(const float* p, const Segment<T>* segs, int num_segs, int64_t head_dim,
                float* const* out) {
  cover<R>(ceil_div(head_dim, kLanes) * kLanes, [&](auto vectors, int64_t d) {
    constexpr int V = decltype(vectors)::value;
    Vec sum[R][V];
    for (int r = 0; r < R; ++r) for (int v = 0; v < V; ++v) sum[r][v] = zero();
    for (int i = 0; i < num_segs; ++i) {
      const T* value = segs[i].v + d;
      const float* weight = p + segs[i].start;
      for (int64_t key = 0; key < segs[i].n; ++key, value += head_dim, ++weight) {
        Vec x[V];
        for (int v = 0; v < V; ++v) x[v] = load(value + v * kLanes);
        for (int r = 0; r < R; ++r) {
          const Vec w = set1(weight[r * kChunk]);
          for (int v = 0; v < V; ++v) sum[r][v] = fma(w, x[v], sum[r][v]);
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) store(out[r] + d + v * kLanes, sum[r][v]);
    }
  });
}

// Calls fn with the number of rows as a constant.
template <class Fn>
void with_rows(int64_t rows, Fn fn) {
  switch (rows) {
    case 1: return fn(std::integral_constant<int, 1>());
    case 2: return fn(std::integral_constant<int, 2>());
    case 3: return fn(std::integral_constant<int, 3>());
    case 4: return fn(std::integral_constant<int, 4>());
    case 5: return fn(std::integral_constant<int, 5>());
    case 6: return fn(std::integral_constant<int, 6>());
    case 7: return fn(std::integral_constant<int, std::min(7, kMaxRows)>());
    default: return fn(std::integral_constant<int, kMaxRows>());
  }
}

// ---- softmax ----------------------------------------------------------------------------------

// Scores of one row over [begin, end) of the chunk become weights exp(s - m); those outside
// [lo, hi) are not visible and become 0.
void softmax_row(float* s, int64_t begin, int64_t end, int64_t lo, int64_t hi, float softcap,
                 float* record) {
  if (lo >= hi) {
    std::fill(s + begin, s + end, 0.0f);
    record[kMax] = -INFINITY, record[kSum] = 0.0f;
    return;
  }
  const int64_t first = lo / 16 * 16, last = round_up16(hi);
  std::fill(s + begin, s + first, 0.0f);
  std::fill(s + last, s + end, 0.0f);
  if (softcap > 0) {
    const Vec cap = set1(softcap), inverse = set1(1.0f / softcap);
    for (int64_t i = first; i < last; i += kLanes) store(s + i, cap * tanh(load(s + i) * inverse));
  }
  std::fill(s + first, s + lo, -INFINITY);
  std::fill(s + hi, s + last, -INFINITY);
  Vec top = set1(-INFINITY);
  for (int64_t i = first; i < last; i += kLanes) top = max(top, load(s + i));
  record[kMax] = reduce_max(top);
  const Vec shift = set1(record[kMax]);
  Vec sum = zero();
  for (int64_t i = first; i < last; i += kLanes) {
    const Vec weight = exp(load(s + i) - shift);
    store(s + i, weight);
    sum = sum + weight;
  }
  record[kSum] = reduce_add(sum);
}

// ---- a work item ------------------------------------------------------------------------------

template <class T>
class Tile {
 public:
  Tile(const AttentionArgs& a, const StepParams& step, const Plan& plan, float* memory)
      : a_(a), step_(step), plan_(plan), dim_(plan.scratch().dim) {
    const AttentionScratch& s = plan.scratch();
    q_ = memory;
    scores_ = q_ + s.q();
    fresh_ = scores_ + s.scores();
    state_ = fresh_ + s.fresh();
    keys_ = state_ + s.state();
    values_ = keys_ + s.keys();
  }

  void run(const Item& item) {
    item_ = item;
    rows_ = item.num_tokens * plan_.group();
    read_queries();
    if (item.records == nullptr) {
      for (int64_t r = 0; r < rows_; ++r) state(r)[kMax] = -INFINITY;
    }
    for (int64_t chunk = item.chunk0; chunk < item.chunk1; ++chunk) run_chunk(chunk);
    if (item.records == nullptr) write_rows();
  }

 private:
  int64_t token(int64_t row) const { return row / plan_.group(); }
  int64_t head(int64_t row) const { return item_.kv_head * plan_.group() + row % plan_.group(); }
  float* state(int64_t row) const { return state_ + row * plan_.scratch().record(); }

  void read_queries() {
    for (int64_t r = 0; r < rows_; ++r) {
      const float* q = a_.q + (item_.first_token + token(r)) * a_.q_stride + head(r) * a_.head_dim;
      for (int64_t d = 0; d < a_.head_dim; ++d) q_[r * dim_ + d] = q[d] * a_.scale;
    }
  }

  void run_chunk(int64_t chunk) {
    start_ = chunk * kChunk;
    begin_ = std::max(start_, plan_.first_key(item_.position) / 16 * 16);
    end_ = std::min(start_ + kChunk, item_.position + item_.num_tokens);
    find_segments();
    // Widening 16-bit values once pays as soon as several row tiles read them.
    if (!std::is_same_v<T, float> && rows_ > 2 * kMaxRows) {
      stage();
      run_rows(chunk, &staged_, 1);
    } else {
      run_rows(chunk, segments_, num_segments_);
    }
  }

  void find_segments() {
    const int64_t bs = step_.block_size, dim = a_.head_dim;
    const int32_t* table = step_.block_tables[a_.group] + item_.seq * step_.max_blocks;
    num_segments_ = 0;
    for (int64_t key = begin_; key < end_;) {
      const int64_t block = table[key / bs] * int64_t{a_.num_kv_heads} + item_.kv_head;
      const int64_t offset = key % bs, n = std::min(bs - offset, end_ - key);
      const T* k = static_cast<const T*>(a_.k_cache) + block * dim * bs + offset;
      const T* v = static_cast<const T*>(a_.v_cache) + (block * bs + offset) * dim;
      segments_[num_segments_++] = {k, bs, v, key - start_, n};
      key += n;
    }
  }

  void stage() {
    for (int i = 0; i < num_segments_; ++i) {
      const Segment<T>& seg = segments_[i];
      const int64_t n = round_up16(seg.n);
      for (int64_t d = 0; d < a_.head_dim; ++d) {
        float* to = keys_ + d * AttentionScratch::kKeyStride + seg.start;
        for (int64_t j = 0; j < n; j += kLanes) store(to + j, load(seg.k + d * seg.k_stride + j));
      }
      float* to = values_ + seg.start * a_.head_dim;
      const int64_t size = seg.n * a_.head_dim;
      for (int64_t j = 0; j < size; j += kLanes) store(to + j, load(seg.v + j));
    }
    const int64_t start = segments_[0].start;
    staged_ = {keys_ + start, AttentionScratch::kKeyStride, values_ + start * a_.head_dim, start,
               end_ - begin_};
  }

  // All rows of the tile against one chunk, a few rows at a time, as evenly as possible.
  template <class U>
  void run_rows(int64_t chunk, const Segment<U>* segs, int num_segs) {
    const int64_t tiles = ceil_div(rows_, kMaxRows);
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t first = rows_ * i / tiles, last = rows_ * (i + 1) / tiles;
      with_rows(last - first, [&](auto rows) {
        run_row_tile<decltype(rows)::value>(chunk, first, segs, num_segs);
      });
    }
  }

  template <int R, class U>
  void run_row_tile(int64_t chunk, int64_t first, const Segment<U>* segs, int num_segs) {
    for (int i = 0; i < num_segs; ++i) {
      score_rows<R>(q_ + first * dim_, dim_, segs[i], a_.head_dim, scores_ + segs[i].start);
    }
    float* outputs[R];
    for (int r = 0; r < R; ++r) {
      float* to = record(chunk, first + r, r);
      const int64_t position = item_.position + token(first + r);
      softmax_row(scores_ + r * kChunk, begin_ - start_, round_up16(end_ - start_),
                  std::max(begin_, plan_.first_key(position)) - start_,
                  std::min(end_, position + 1) - start_, a_.softcap, to);
      outputs[r] = to + kOutput;
    }
    value_rows<R>(scores_, segs, num_segs, a_.head_dim, outputs);
    if (item_.records != nullptr) return;
    for (int r = 0; r < R; ++r) merge(state(first + r), outputs[r] - kOutput, dim_);
  }

  // Where the record of a row goes: to its place if the sequence is split, else to the `i`th fresh.
  float* record(int64_t chunk, int64_t row, int64_t i) const {
    const int64_t size = plan_.scratch().record();
    if (item_.records == nullptr) return fresh_ + i * size;
    const int64_t index = token(row) * a_.num_heads + head(row);
    return item_.records + (index * item_.num_chunks + chunk - item_.first_chunk) * size;
  }

  void write_rows() {
    for (int64_t r = 0; r < rows_; ++r) {
      float* out = a_.out + (item_.first_token + token(r)) * a_.out_stride + head(r) * a_.head_dim;
      write_output(a_, state(r), head(r), out);
    }
  }

  const AttentionArgs& a_;
  const StepParams& step_;
  const Plan& plan_;
  const int64_t dim_;
  float *q_, *scores_, *fresh_, *state_, *keys_, *values_;
  Item item_{};
  int64_t rows_ = 0;
  int64_t start_ = 0, begin_ = 0, end_ = 0;   // positions: of the chunk, and of the keys read
  Segment<T> segments_[kChunk / 16];
  int num_segments_ = 0;
  Segment<float> staged_{};
};

// ---- the ops ----------------------------------------------------------------------------------

template <class T>
void run_items(const AttentionArgs& a, const StepParams& step, int ith, int nth) {
  const Plan plan(a, step, nth);
  char* memory = static_cast<char*>(a.scratch) + AttentionScratch::kCounterBytes +
                 plan.scratch().thread_bytes() * static_cast<size_t>(ith);
  Tile<T> tile(a, step, plan, reinterpret_cast<float*>(memory));
  Tickets tickets(a.scratch, ith, nth);
  int64_t before = 0;
  float* records = plan.partials();
  for (int64_t s = 0; s < step.num_seqs; ++s) {
    const int64_t items = plan.num_items(s);
    for (; tickets.current() < before + items; tickets.advance()) {
      tile.run(plan.item(s, tickets.current() - before, plan.is_split(s) ? records : nullptr));
    }
    before += items;
    records += plan.record_floats(s);
  }
}

// Merges the records of a row of a split sequence from left to right.
void merge_row(const AttentionArgs& a, const Plan& plan, float* records, int64_t num_chunks,
               int64_t head, float* out) {
  const int64_t size = plan.scratch().record();
  for (int64_t c = 1; c < num_chunks; ++c) merge(records, records + c * size, plan.scratch().dim);
  write_output(a, records, head, out);
}

}  // namespace

void attention(const AttentionArgs& a, const StepParams& step, int ith, int nth) {
  switch (static_cast<WeightKind>(a.kv_kind)) {
    case WeightKind::f16: return run_items<Half>(a, step, ith, nth);
    case WeightKind::bf16: return run_items<BFloat>(a, step, ith, nth);
    default: return run_items<float>(a, step, ith, nth);
  }
}

void attention_combine(const AttentionArgs& a, const StepParams& step, int ith, int nth) {
  if (nth == 1) return;
  if (ith == 0) static_cast<std::atomic<int64_t>*>(a.scratch)->store(0, std::memory_order_relaxed);
  const Plan plan(a, step, nth);
  if (!plan.split()) return;
  float* records = plan.partials();
  for (int64_t s = 0; s < step.num_seqs; ++s) {
    if (!plan.is_split(s)) continue;
    const int64_t chunks = plan.num_chunks(s), rows = plan.num_queries(s) * a.num_heads;
    for (int64_t row = rows * ith / nth; row < rows * (ith + 1) / nth; ++row) {
      const int64_t token = step.query_start[s] + row / a.num_heads, head = row % a.num_heads;
      merge_row(a, plan, records + row * chunks * plan.scratch().record(), chunks, head,
                a.out + token * a.out_stride + head * a.head_dim);
    }
    records += plan.record_floats(s);
  }
}

}  // namespace VLLM_ISA
}  // namespace vllm
