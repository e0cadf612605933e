// What a sampling step can compute on logits [rows, vocab], as plain data for the kernel of the
// running ISA (sampling.cpp), and the counter-based random numbers behind it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace vllm {

enum class SampleOp : int32_t {
  mask_allowed,      // lists                                        edits, in place
  mask_banned,       // lists
  bitmask,           // bitmask_rows, bitmask
  add_bias,          // lists with values
  penalties,         // prompt, lists (the output), repetition, frequency, presence
  argmax,            // -> tokens                                    kernels
  process,           // temperature, top_k, top_p, min_p; in place
  draw,              // the same, with seeds and positions -> tokens
  logprobs,          // tokens -> logprobs, ranks, and the best top_n
  token_logprobs,    // lists -> logprobs, ranks
};

// Row r owns ids[offsets[r]] .. ids[offsets[r + 1] - 1].
struct TokenLists {
  const int64_t* offsets = nullptr;
  const int32_t* ids = nullptr;
  const float* values = nullptr;
};

// Fields that the op does not name above are unused.
struct SampleArgs {
  SampleOp op;
  float* logits; int64_t stride; int64_t rows; int64_t vocab;
  TokenLists lists, prompt;
  const int32_t* bitmask_rows; const int32_t* bitmask; int64_t num_masks, mask_words;
  const float *repetition, *frequency, *presence;
  const float* temperature; const int32_t* top_k; const float* top_p; const float* min_p;
  const int64_t *seeds, *positions;
  int32_t* tokens;                      // [rows]
  float* logprobs; int32_t* ranks;      // [rows], or one per id
  int64_t top_n; int32_t* top_ids; float* top_logprobs;   // [rows, top_n]
  char* scratch;                        // sample_scratch_bytes of the calling thread
};

// Per thread: five arrays of one value per token, and two of one value per block of tokens.
constexpr int64_t kSampleBlock = 128;
[[gnu::always_inline]] inline size_t sample_scratch_bytes(int64_t vocab) {
  const int64_t padded = (vocab + kSampleBlock - 1) / kSampleBlock * kSampleBlock;
  return static_cast<size_t>(padded * 5 + padded / kSampleBlock * 2 + 64) * sizeof(float);
}

inline bool is_edit(SampleOp op) { return op < SampleOp::argmax; }
void edit_logits(const SampleArgs& args, int ith, int nth);   // sampling_edits.cpp

// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
struct Philox {
  uint32_t x[4];

  [[gnu::always_inline]] static Philox bits(const uint32_t (&counter)[4], uint32_t k0,
                                            uint32_t k1) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; ++round) {
      const uint64_t a = uint64_t{0xD2511F53} * c0, b = uint64_t{0xCD9E8D57} * c2;
      c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
      c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
      c1 = static_cast<uint32_t>(b);
      c3 = static_cast<uint32_t>(a);
      k0 += 0x9E3779B9, k1 += 0xBB67AE85;
    }
    return {{c0, c1, c2, c3}};
  }

  // A number of 53 bits in [0, 1) that belongs to this seed and position alone.
  [[gnu::always_inline]] static double uniform(int64_t seed, int64_t position) {
    const auto s = static_cast<uint64_t>(seed), p = static_cast<uint64_t>(position);
    const Philox r = bits({static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32), 0, 0},
                          static_cast<uint32_t>(s), static_cast<uint32_t>(s >> 32));
    return ((r.x[0] >> 5) * 67108864.0 + (r.x[1] >> 6)) * (1.0 / 9007199254740992.0);
  }
};

}  // namespace vllm
