// Edits of logits that touch a few tokens: masks, bias, penalties. Plain loops, built once.
#include <algorithm>
#include <cmath>

#include "sampling.h"

namespace vllm {
namespace {

float* row_of(const SampleArgs& a, int64_t r) { return a.logits + r * a.stride; }

struct Ids {
  const int32_t *first, *last;
  Ids(const TokenLists& lists, int64_t r)
      : first(lists.ids + lists.offsets[r]), last(lists.ids + lists.offsets[r + 1]) {}
  const int32_t* begin() const { return first; }
  const int32_t* end() const { return last; }
};

void mask_allowed(const SampleArgs& a, int64_t r) {
  float* x = row_of(a, r);
  float* kept = reinterpret_cast<float*>(a.scratch);
  const Ids allowed(a.lists, r);
  if (allowed.first == allowed.last) return;
  for (int32_t id : allowed) kept[id] = x[id];
  std::fill(x, x + a.vocab, -INFINITY);
  for (int32_t id : allowed) x[id] = kept[id];
}

void mask_banned(const SampleArgs& a, int64_t r) {
  for (int32_t id : Ids(a.lists, r)) row_of(a, r)[id] = -INFINITY;
}

void add_bias(const SampleArgs& a, int64_t r) {
  for (int64_t i = a.lists.offsets[r]; i < a.lists.offsets[r + 1]; ++i) {
    row_of(a, r)[a.lists.ids[i]] += a.lists.values[i];
  }
}

// Counts are kept for the tokens of the lists only, so that the cost does not grow with vocab.
void penalise(const SampleArgs& a, int64_t r) {
  constexpr int32_t kDone = -1;
  const Ids prompt(a.prompt, r), output(a.lists, r);
  int32_t* count = reinterpret_cast<int32_t*>(a.scratch);
  for (int32_t id : prompt) count[id] = 0;
  for (int32_t id : output) count[id] = 0;
  for (int32_t id : output) ++count[id];
  auto apply = [&](int32_t id) {
    if (count[id] == kDone) return;
    float& x = row_of(a, r)[id];
    x = x > 0 ? x / a.repetition[r] : x * a.repetition[r];
    x -= a.frequency[r] * static_cast<float>(count[id]);
    if (count[id] > 0) x -= a.presence[r];
    count[id] = kDone;
  };
  for (int32_t id : output) apply(id);
  for (int32_t id : prompt) apply(id);
}

void apply_bitmask(const SampleArgs& a, int64_t mask) {
  float* x = row_of(a, a.bitmask_rows[mask]);
  const int32_t* words = a.bitmask + mask * a.mask_words;
  for (int64_t w = 0; w < a.mask_words; ++w, x += 32) {
    const auto bits = static_cast<uint32_t>(words[w]);
    if (bits == 0xFFFFFFFFu) continue;
    const int64_t n = std::min<int64_t>(32, a.vocab - w * 32);
    for (int64_t i = 0; i < n; ++i) x[i] = (bits >> i) & 1 ? x[i] : -INFINITY;
  }
}

}  // namespace

void edit_logits(const SampleArgs& a, int ith, int nth) {
  const int64_t rows = a.op == SampleOp::bitmask ? a.num_masks : a.rows;
  for (int64_t r = rows * ith / nth; r < rows * (ith + 1) / nth; ++r) {
    switch (a.op) {
      case SampleOp::mask_allowed: mask_allowed(a, r); break;
      case SampleOp::mask_banned: mask_banned(a, r); break;
      case SampleOp::bitmask: apply_bitmask(a, r); break;
      case SampleOp::add_bias: add_bias(a, r); break;
      case SampleOp::penalties: penalise(a, r); break;
      default: break;   // the others: sampling.cpp
    }
  }
}

}  // namespace vllm
