// Sampling on one row of logits at a time, each row by one thread alone.
//
// No row is sorted. A first pass finds the largest logit of each block of 128 tokens (at memory
// speed, with the overall largest and a check for NaN); the k-th largest of those block maxima is a
// lower bound for the k-th largest logit, so that a second pass only opens blocks that can matter.
// Draws are by inverse CDF in the order of token ids, with one random number that belongs to
// (seed, position).
#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "isa.h"
#include "simd.h"

namespace vllm {
namespace VLLM_ISA {
namespace {

constexpr int64_t kBlock = kSampleBlock;
constexpr float kInf = INFINITY;

// ---- passes over the vocabulary ---------------------------------------------------------------

struct Row {
  float* x;
  int64_t vocab;

  Row(const SampleArgs& a, int64_t r) : x(a.logits + r * a.stride), vocab(a.vocab) {}
  int64_t blocks() const { return (vocab + kBlock - 1) / kBlock; }
  int64_t block_end(int64_t b) const { return std::min((b + 1) * kBlock, vocab); }
};

// Tokens that may be drawn, by increasing id, and room to select among them.
struct Candidates {
  float* x;        // logits
  float* weight;   // exp((x - top) / temperature)
  int32_t* ids;
  float *select_x, *select_weight;
  float *block_value, *block_copy;   // one value per block of the row
  int64_t n = 0;

  explicit Candidates(const SampleArgs& a) {
    const int64_t padded = (a.vocab + kBlock - 1) / kBlock * kBlock;
    x = reinterpret_cast<float*>(a.scratch);
    weight = x + padded;
    select_x = weight + padded;
    select_weight = select_x + padded;
    ids = reinterpret_cast<int32_t*>(select_weight + padded);
    block_value = select_weight + 2 * padded;
    block_copy = block_value + padded / kBlock;
  }
};

// A vector of values[i..], with `fill` past `size`.
Vec read(const float* values, int64_t i, int64_t size, float fill) {
  if (i + kLanes <= size) return load(values + i);
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, fill);
  std::copy(values + std::min(i, size), values + size, lanes);
  return load(lanes);
}

// The largest logit of each block. Returns the largest of all, or NaN if any logit is NaN.
float scan(const Row& row, float* block_max) {
  Vec nans = zero();
  float top = -kInf;
  for (int64_t b = 0; b < row.blocks(); ++b) {
    Vec best = set1(-kInf);
    for (int64_t i = b * kBlock; i < row.block_end(b); i += kLanes) {
      const Vec v = read(row.x, i, row.vocab, -kInf);
      best = max(best, v);
      nans = nans + select(v == v, zero(), set1(1.0f));
    }
    block_max[b] = reduce_max(best);
    top = std::max(top, block_max[b]);
  }
  return reduce_add(nans) > 0 ? NAN : top;
}

// sum of exp((x - top) * inverse_t) over the row; `block_sum` may be null.
double weigh(const Row& row, float top, float inverse_t, float* block_sum) {
  const Vec shift = set1(top), factor = set1(inverse_t);
  double total = 0;
  for (int64_t b = 0; b < row.blocks(); ++b) {
    Vec sum = zero();
    for (int64_t i = b * kBlock; i < row.block_end(b); i += kLanes) {
      sum = sum + exp((read(row.x, i, row.vocab, -kInf) - shift) * factor);
    }
    const float value = reduce_add(sum);
    if (block_sum != nullptr) block_sum[b] = value;
    total += value;
  }
  return total;
}

int32_t count_at_least(const Row& row, float bound) {
  const Vec limit = set1(bound);
  Vec count = zero();   // exact: lanes stay far below 2^24
  int64_t i = 0;
  for (; i + kLanes <= row.vocab; i += kLanes) {
    count = count + select(load(row.x + i) >= limit, set1(1.0f), zero());
  }
  auto total = static_cast<int32_t>(reduce_add(count));
  for (; i < row.vocab; ++i) total += row.x[i] >= bound;
  return total;
}

int32_t find_first(const Row& row, const float* block_max, float value) {
  const int64_t b = std::find(block_max, block_max + row.blocks(), value) - block_max;
  return static_cast<int32_t>(std::find(row.x + b * kBlock, row.x + row.vocab, value) - row.x);
}

int32_t argmax(const Row& row, Candidates& c) {
  const float top = scan(row, c.block_value);
  return std::isfinite(top) ? find_first(row, c.block_value, top) : -1;
}

// ---- candidates -------------------------------------------------------------------------------

// A type of this ISA's own, so that the linker does not merge the selection of different ISAs.
struct Greater { bool operator()(float a, float b) const { return a > b; } };

// The n-th largest of `size` values; `copy` is overwritten.
float nth_largest(const float* values, int64_t size, int64_t n, float* copy) {
  std::copy(values, values + size, copy);
  std::nth_element(copy, copy + n - 1, copy + size, Greater());
  return copy[n - 1];
}

// At least n logits are as large as this. `block_max` is in c.block_value.
float bound_of_nth(const Row& row, Candidates& c, int64_t n) {
  if (n > row.blocks()) return -kInf;
  return nth_largest(c.block_value, row.blocks(), n, c.block_copy);
}

void collect(const Row& row, Candidates& c, float bound) {
  c.n = 0;
  for (int64_t b = 0; b < row.blocks(); ++b) {
    if (c.block_value[b] < bound) continue;
    for (int64_t i = b * kBlock; i < row.block_end(b); ++i) {
      c.x[c.n] = row.x[i];
      c.ids[c.n] = static_cast<int32_t>(i);
      c.n += row.x[i] >= bound;
    }
  }
}

// Keeps x > bound, and of x == bound those with an id of at most `last_id`.
void keep(Candidates& c, float bound, int32_t last_id) {
  int64_t n = 0;
  for (int64_t i = 0; i < c.n; ++i) {
    const bool kept = c.x[i] > bound || (c.x[i] == bound && c.ids[i] <= last_id);
    c.x[n] = c.x[i], c.weight[n] = c.weight[i], c.ids[n] = c.ids[i];
    n += kept;
  }
  c.n = n;
}

double mass_of(const Candidates& c) {
  double total = 0;
  for (int64_t i = 0; i < c.n; ++i) total += c.weight[i];
  return total;
}

// ---- top-p ------------------------------------------------------------------------------------

// Three-way partition of [lo, hi) into > pivot, == pivot, < pivot, with the mass of the first two.
struct Parts { int64_t equal, less; double mass_greater, mass_equal; };

Parts partition(Candidates& c, int64_t lo, int64_t hi, float pivot) {
  Parts parts{lo, hi, 0, 0};
  auto exchange = [&](int64_t i, int64_t j) {
    std::swap(c.select_x[i], c.select_x[j]);
    std::swap(c.select_weight[i], c.select_weight[j]);
  };
  for (int64_t i = lo; i < parts.less;) {
    if (c.select_x[i] > pivot) {
      parts.mass_greater += c.select_weight[i];
      exchange(i++, parts.equal++);
    } else if (c.select_x[i] == pivot) {
      parts.mass_equal += c.select_weight[i++];
    } else {
      exchange(i, --parts.less);
    }
  }
  return parts;
}

float median(float a, float b, float c) {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}

// Keeps the fewest most probable candidates with at least this mass; of equal ones the lower ids.
void keep_mass(Candidates& c, double mass) {
  std::copy(c.x, c.x + c.n, c.select_x);
  std::copy(c.weight, c.weight + c.n, c.select_weight);
  int64_t lo = 0, hi = c.n;
  while (lo < hi) {
    const float* x = c.select_x;
    const float pivot = median(x[lo], x[lo + (hi - lo) / 2], x[hi - 1]);
    const Parts parts = partition(c, lo, hi, pivot);
    if (parts.equal > lo && parts.mass_greater >= mass) {
      hi = parts.equal;
      continue;
    }
    mass -= parts.mass_greater;
    if (parts.mass_equal < mass) {
      mass -= parts.mass_equal;
      lo = parts.less;
      continue;
    }
    int32_t last_id = 0;
    for (int64_t i = 0; i < c.n; ++i) {
      if (c.x[i] != pivot) continue;
      last_id = c.ids[i];
      mass -= c.weight[i];
      if (mass <= 0) break;
    }
    return keep(c, pivot, last_id);
  }
  // Rounding can leave nothing in [lo, hi): then all that is left of hi are needed.
  if (hi < c.n) keep(c, *std::min_element(c.select_x, c.select_x + hi), INT32_MAX);
}

// ---- one row's distribution -------------------------------------------------------------------

// The truncation that a row asks for; what is off has no effect.
struct Truncation {
  float temperature;
  int64_t top_k;
  float top_p, min_p;

  Truncation(const SampleArgs& a, int64_t r)
      : temperature(a.temperature[r]),
        top_k(a.top_k != nullptr && a.top_k[r] < a.vocab ? a.top_k[r] : 0),
        top_p(a.top_p != nullptr ? a.top_p[r] : 1.0f),
        min_p(a.min_p != nullptr ? a.min_p[r] : 0.0f) {}
  bool any() const { return top_k > 0 || top_p < 1.0f || min_p > 0.0f; }
  float inverse_t() const { return 1.0f / temperature; }
};

// Fills `c` with the tokens that remain. `top` is the largest logit, block maxima are in place.
void truncate(const Row& row, const Truncation& t, float top, Candidates& c) {
  float bound = -kInf;
  double total = 0;
  if (t.min_p > 0) bound = top + t.temperature * std::log(t.min_p);
  if (t.top_k > 0) {
    bound = std::max(bound, bound_of_nth(row, c, t.top_k));
  } else if (t.top_p < 1 && t.min_p == 0) {
    // All tokens less probable than (1 - p) / vocab together can't make up what top-p removes;
    // half of that leaves room for rounding.
    total = weigh(row, top, t.inverse_t(), nullptr);
    const double share = (1.0 - t.top_p) * total / static_cast<double>(row.vocab);
    bound = top + t.temperature * static_cast<float>(std::log(0.5 * share));
  }
  collect(row, c, bound);
  if (t.top_k > 0 && c.n > t.top_k) {
    keep(c, nth_largest(c.x, c.n, t.top_k, c.select_x), INT32_MAX);
  }
  const Vec shift = set1(top), factor = set1(t.inverse_t());
  for (int64_t i = 0; i < c.n; i += kLanes) {   // the arrays are padded to whole vectors
    store(c.weight + i, exp((load(c.x + i) - shift) * factor));
  }
  if (t.top_p >= 1) return;
  keep_mass(c, (total > 0 ? total : mass_of(c)) * t.top_p);
}

// The first of n weights at which their running sum passes `target`; the last positive one if
// rounding keeps the sum below it.
int64_t pass(const float* weight, int64_t n, double target) {
  double sum = 0;
  int64_t last = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (weight[i] <= 0) continue;
    sum += weight[i];
    last = i;
    if (sum > target) break;
  }
  return last;
}

// Draws from the whole row without storing its weights: first the block, then the token in it.
int32_t draw_plain(const Row& row, float top, float inverse_t, double uniform, Candidates& c) {
  double target = uniform * weigh(row, top, inverse_t, c.block_copy);
  int64_t block = 0;
  for (int64_t b = 0; b < row.blocks(); ++b) {
    if (c.block_copy[b] <= 0) continue;
    block = b;
    if (c.block_copy[b] > target) break;
    target -= c.block_copy[b];
  }
  float weight[kBlock];
  const int64_t start = block * kBlock;
  for (int64_t i = 0; i < kBlock; i += kLanes) {
    const Vec x = read(row.x, start + i, row.vocab, -kInf);
    store(weight + i, exp((x - set1(top)) * set1(inverse_t)));
  }
  return static_cast<int32_t>(start + pass(weight, row.block_end(block) - start, target));
}

int32_t draw(const SampleArgs& a, int64_t r, Candidates& c) {
  const Row row(a, r);
  const Truncation t(a, r);
  const float top = scan(row, c.block_value);
  if (!std::isfinite(top)) return -1;
  if (t.temperature == 0) return find_first(row, c.block_value, top);
  const double uniform = Philox::uniform(a.seeds[r], a.positions[r]);
  if (!t.any()) return draw_plain(row, top, t.inverse_t(), uniform, c);
  truncate(row, t, top, c);
  return c.ids[pass(c.weight, c.n, uniform * mass_of(c))];
}

void process(const SampleArgs& a, int64_t r, Candidates& c) {
  const Row row(a, r);
  const Truncation t(a, r);
  if (t.temperature == 0) return;
  if (t.any()) {
    const float top = scan(row, c.block_value);
    if (!std::isfinite(top)) return;
    truncate(row, t, top, c);
    std::fill(row.x, row.x + row.vocab, -kInf);
    for (int64_t i = 0; i < c.n; ++i) row.x[c.ids[i]] = c.x[i];
  }
  const float factor = t.inverse_t();
  for (int64_t i = 0; i < row.vocab; ++i) row.x[i] *= factor;
}

// ---- log-probabilities ------------------------------------------------------------------------

// log-softmax(x) = (x - top) - log_total; NaN throughout if the row has no finite top.
struct LogSoftmax {
  float top;
  float log_total = NAN;
  LogSoftmax(const Row& row, Candidates& c) : top(scan(row, c.block_value)) {
    if (!valid()) return;
    log_total = static_cast<float>(std::log(weigh(row, top, 1.0f, nullptr)));
  }
  bool valid() const { return std::isfinite(top); }
  float operator()(float x) const { return x - top - log_total; }
};

void best_tokens(const Row& row, const LogSoftmax& f, int64_t n, int32_t* ids, float* values,
                 Candidates& c) {
  if (n == 0) return;
  if (f.valid()) {
    collect(row, c, bound_of_nth(row, c, n));
    std::partial_sort(c.ids, c.ids + n, c.ids + c.n, [&](int32_t i, int32_t j) {
      return row.x[i] > row.x[j] || (row.x[i] == row.x[j] && i < j);
    });
  }
  for (int64_t i = 0; i < n; ++i) {
    ids[i] = f.valid() ? c.ids[i] : static_cast<int32_t>(i);
    values[i] = f(row.x[ids[i]]);
  }
}

void row_logprobs(const SampleArgs& a, int64_t r, Candidates& c) {
  const Row row(a, r);
  const LogSoftmax f(row, c);
  const float chosen = row.x[a.tokens[r]];
  a.logprobs[r] = f(chosen);
  a.ranks[r] = count_at_least(row, chosen);
  best_tokens(row, f, a.top_n, a.top_ids + r * a.top_n, a.top_logprobs + r * a.top_n, c);
}

void row_token_logprobs(const SampleArgs& a, int64_t r, Candidates& c) {
  if (a.lists.offsets[r] == a.lists.offsets[r + 1]) return;
  const Row row(a, r);
  const LogSoftmax f(row, c);
  for (int64_t i = a.lists.offsets[r]; i < a.lists.offsets[r + 1]; ++i) {
    const float x = row.x[a.lists.ids[i]];
    a.logprobs[i] = f(x);
    a.ranks[i] = count_at_least(row, x);
  }
}

// ---- dispatch ---------------------------------------------------------------------------------

void run_row(const SampleArgs& a, int64_t r, Candidates& c) {
  switch (a.op) {
    case SampleOp::argmax: a.tokens[r] = argmax(Row(a, r), c); break;
    case SampleOp::process: process(a, r, c); break;
    case SampleOp::draw: a.tokens[r] = draw(a, r, c); break;
    case SampleOp::logprobs: row_logprobs(a, r, c); break;
    case SampleOp::token_logprobs: row_token_logprobs(a, r, c); break;
    default: break;   // edits: sampling_edits.cpp
  }
}

}  // namespace

void sample(const SampleArgs& a, int ith, int nth) {
  Candidates candidates(a);
  for (int64_t r = a.rows * ith / nth; r < a.rows * (ith + 1) / nth; ++r) run_row(a, r, candidates);
}

}  // namespace VLLM_ISA
}  // namespace vllm
