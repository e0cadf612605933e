// How an attention step is cut into work items, and how threads take them. Every thread computes
// the same plan from the same inputs; which thread runs an item changes no result.
#pragma once
#include <algorithm>
#include <atomic>

#include "attention.h"
#include "isa.h"

namespace vllm {
namespace VLLM_ISA {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up16(int64_t a) { return (a + 15) / 16 * 16; }

// A tile of one sequence: queries [first_token, first_token + num_tokens) of the step, at positions
// from `position` on, for one KV head; chunks [chunk0, chunk1).
struct Item {
  int64_t seq, kv_head, first_token, num_tokens, position;
  int64_t chunk0, chunk1;
  float* records;        // split: where the records of the sequence start; else null
  int64_t num_chunks;    // split: records per row
  int64_t first_chunk;   // split: chunk of record 0
};

class Plan {
 public:
  Plan(const AttentionArgs& a, const StepParams& step, int nth)
      : a_(a), step_(step), scratch_(a.num_heads, a.head_dim) {
    group_ = a.num_heads / a.num_kv_heads;
    tile_tokens_ = std::max<int64_t>(1, kAttentionTileRows / group_);
    int64_t items = 0, records = 0;
    for (int64_t s = 0; s < step.num_seqs; ++s) {
      const int64_t tiles = ceil_div(num_queries(s), tile_tokens_);
      items += tiles * a.num_kv_heads;
      if (tiles == 1) records += num_queries(s) * a.num_heads * num_chunks(s);
    }
    const size_t used = AttentionScratch::kCounterBytes +
                        scratch_.thread_bytes() * static_cast<size_t>(nth);
    partials_ = reinterpret_cast<float*>(static_cast<char*>(a.scratch) + used);
    const size_t bytes = static_cast<size_t>(records * scratch_.record()) * sizeof(float);
    split_ = nth > 1 && items < 4 * nth && used + bytes <= a.scratch_bytes;
  }

  const AttentionScratch& scratch() const { return scratch_; }
  bool split() const { return split_; }
  int64_t num_queries(int64_t s) const { return step_.query_start[s + 1] - step_.query_start[s]; }
  int64_t position(int64_t s) const { return step_.seq_lens[s] - num_queries(s); }
  int64_t tile_tokens() const { return tile_tokens_; }
  int64_t group() const { return group_; }
  float* partials() const { return partials_; }

  int64_t first_key(int64_t position) const {
    return a_.window > 0 ? std::max<int64_t>(0, position - a_.window + 1) : 0;
  }
  int64_t first_chunk(int64_t s) const { return first_key(position(s)) / kAttentionChunk; }
  int64_t num_chunks(int64_t s) const {
    return ceil_div(step_.seq_lens[s], kAttentionChunk) - first_chunk(s);
  }
  bool is_split(int64_t s) const {
    return split_ && num_queries(s) > 0 && num_queries(s) <= tile_tokens_ && num_chunks(s) > 1;
  }
  int64_t num_items(int64_t s) const {
    if (is_split(s)) return a_.num_kv_heads * num_chunks(s);
    return a_.num_kv_heads * ceil_div(num_queries(s), tile_tokens_);
  }
  int64_t record_floats(int64_t s) const {
    return is_split(s) ? num_queries(s) * a_.num_heads * num_chunks(s) * scratch_.record() : 0;
  }

  // Item `i` of sequence `s`. Later tiles see more keys, so they come first.
  Item item(int64_t s, int64_t i, float* records) const {
    Item item{};
    item.seq = s, item.kv_head = i % a_.num_kv_heads;
    const int64_t part = i / a_.num_kv_heads;
    const bool split = is_split(s);
    const int64_t tile = split ? 0 : ceil_div(num_queries(s), tile_tokens_) - 1 - part;
    const int64_t skipped = tile * tile_tokens_;
    item.first_token = step_.query_start[s] + skipped;
    item.num_tokens = std::min(tile_tokens_, num_queries(s) - skipped);
    item.position = position(s) + skipped;
    item.chunk0 = first_key(item.position) / kAttentionChunk;
    item.chunk1 = ceil_div(item.position + item.num_tokens, kAttentionChunk);
    if (split) {
      item.records = records;
      item.num_chunks = num_chunks(s), item.first_chunk = item.chunk0;
      item.chunk0 += part, item.chunk1 = item.chunk0 + 1;
    }
    return item;
  }

 private:
  const AttentionArgs& a_;
  const StepParams& step_;
  const AttentionScratch scratch_;
  int64_t group_, tile_tokens_;
  float* partials_;
  bool split_;
};

// The next item for a thread: its own index first, then whatever is left.
class Tickets {
 public:
  Tickets(void* counter, int ith, int nth)
      : counter_(static_cast<std::atomic<int64_t>*>(counter)), next_(ith), nth_(nth) {}
  int64_t current() const { return next_; }
  void advance() {
    next_ = nth_ == 1 ? next_ + 1 : nth_ + counter_->fetch_add(1, std::memory_order_relaxed);
  }

 private:
  std::atomic<int64_t>* counter_;
  int64_t next_;
  const int nth_;
};

}  // namespace
}  // namespace VLLM_ISA
}  // namespace vllm
