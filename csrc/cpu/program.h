// The step program: a flat list of ops over an arena, run by all threads in one call.
//
// Everything that could send a kernel to a wrong address is checked here: shapes, types, ids and
// sizes when an op is added, every index of the inputs before a step runs. Errors are
// std::invalid_argument and name the op or array and the value. Kernels check nothing.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "threads.h"
#include "weight_memory.h"

namespace vllm {

constexpr int64_t kMaxDim = int64_t{1} << 31;   // of anything; products then fit in int64

// A matrix in the packed form of one ISA, owned.
class Weight {
 public:
  Weight(const KernelTable& kernels, WeightKind kind, int32_t group, bool has_min, int64_t n,
         int64_t k);
  // Rows [row0, row0 + n_rows) from `src_bytes` bytes of source rows; on all threads of the pool.
  void pack(ThreadPool& pool, int64_t row0, int64_t n_rows, const void* src, size_t src_bytes,
            SourceType type);
  void unpack(ThreadPool& pool, float* dst) const;   // dst: [n, k]
  const PackedWeight& packed() const { return packed_; }
  const KernelTable& kernels() const { return kernels_; }

 private:
  const KernelTable& kernels_;
  PackedWeight packed_;
  WeightMemory memory_;
};

// Bytes of one row of k values in a checkpoint; k must be a multiple of the type's block.
int64_t source_row_bytes(SourceType type, int64_t k);

enum class BufferType : int32_t { f32, q8 };

// Rows of `cols` values; rows are `row_bytes` apart, a multiple of 64.
struct Buffer {
  Rows rows;
  int64_t cols;
  BufferType type;
  int64_t num_rows;
  int64_t row_bytes;
  int64_t offset;   // in the arena
  int64_t bytes() const { return num_rows * row_bytes; }
};
int64_t buffer_row_bytes(int64_t cols, BufferType type);

struct BufferRef { int64_t id; int64_t first_col; };
using ArgValue = std::variant<std::monostate, int64_t, double, std::string, BufferRef>;
using ArgMap = std::map<std::string, ArgValue>;

struct OpTiming { std::string name; int64_t calls; double seconds; };

class ArgReader;

class Program {
 public:
  Program(const KernelTable& kernels, int64_t max_tokens, int64_t max_logits, int64_t max_seqs,
          int32_t activation_bits);

  // Buffers share memory if their offsets say so; without an offset they are appended.
  int64_t add_buffer(Rows rows, int64_t cols, BufferType type, std::optional<int64_t> offset);
  int64_t add_const(const float* data, std::vector<int64_t> shape);   // copied
  int64_t add_weight(std::shared_ptr<const Weight> weight);
  int64_t add_op(const std::string& name, const ArgMap& args);   // program_ops.cpp

  // Gives the KV tensors memory (zeroed, lazily touched). Ops name a tensor and a group.
  void bind_kv(int64_t num_blocks, int64_t block_size, int64_t num_tensors, int64_t num_groups);

  // Runs ops [first, last). One caller at a time (refused otherwise).
  void run(ThreadPool& pool, const StepParams& step, int64_t first, int64_t last);

  int64_t num_ops() const { return static_cast<int64_t>(ops_.size()); }
  int64_t block_size() const { return block_size_; }
  int64_t num_groups() const { return num_groups_; }
  const Buffer& buffer(int64_t id) const;
  char* buffer_data(int64_t id);   // ends building: no buffer or op can be added afterwards

  struct KvTensor {
    WeightKind kind; int32_t num_kv_heads, head_dim;
    Mapping k, v;
  };
  const KvTensor& kv_tensor(int64_t index) const;
  int64_t num_blocks() const { return num_blocks_; }

  void set_timing(bool on);   // also clears what was measured
  std::vector<OpTiming> timings() const;
  int64_t arena_bytes() const { return arena_bytes_; }

 private:
  friend class ArgReader;
  using Clock = std::chrono::steady_clock;
  using Kernel = void (*)(const KernelTable&, const void* args, const StepParams&, int, int);
  struct Op {
    std::string name;
    std::shared_ptr<void> args;    // one of the structs of kernels.h
    size_t first_phase;
    int64_t calls = 0;
    double seconds = 0;
  };
  struct Phase { Kernel kernel; size_t op; };   // all threads finish one before the next begins
  struct Const { std::vector<float> data; std::vector<int64_t> shape; };
  struct KvUse {
    std::string op;
    int64_t tensor, group;
    WeightKind kind; int32_t num_kv_heads, head_dim;
    std::function<void(const KvTensor&)> bind;
  };

  void finish_building();
  void reserve_scratch(int nth);
  void check_step(const StepParams& step) const;
  void check_sequences(const StepParams& step) const;
  void check_kv_group(const StepParams& step, int64_t group) const;
  void check_kv_use(const KvUse& use, const KvTensor& tensor) const;
  void run_ops(ThreadPool& pool, const StepParams& step, size_t first, size_t last);
  Clock::time_point measure(size_t phase, Clock::time_point start);

  const KernelTable& kernels_;
  const int64_t max_tokens_, max_logits_, max_seqs_;
  const bool wide_;   // quantised activations have 16 bits
  std::vector<Buffer> buffers_;
  std::vector<std::unique_ptr<Const>> consts_;
  std::vector<std::shared_ptr<const Weight>> weights_;
  std::vector<Op> ops_;
  std::vector<Phase> phases_;

  int64_t arena_bytes_ = 0;
  Mapping arena_;
  std::vector<std::function<void(char* arena)>> arena_pointers_;
  bool built_ = false;

  size_t scratch_bytes_ = 0;
  Mapping scratch_;
  std::vector<AttentionArgs*> attention_ops_;

  int64_t num_blocks_ = 0, block_size_ = 0, num_groups_ = 0;
  std::vector<KvTensor> kv_tensors_;
  std::vector<KvUse> kv_uses_;

  int64_t vocab_rows_ = kMaxDim;      // limits of token ids and positions, set by the ops
  int64_t rope_positions_ = kMaxDim;
  bool timing_ = false;
  std::atomic<bool> running_{false};
};

}  // namespace vllm
