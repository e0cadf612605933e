// Reads the arguments of one op of a step program by name and checks each against the program's
// buffers, constants and weights. Nothing of the program changes before `commit`.
#pragma once
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>

#include "program.h"

namespace vllm {

constexpr double kRequired = std::numeric_limits<double>::quiet_NaN();

// A buffer from a column on.
struct Span {
  const Buffer* buffer = nullptr;
  int64_t first_col = 0;

  explicit operator bool() const { return buffer != nullptr; }
  bool overlaps(const Span& other) const {
    return buffer && other.buffer &&
           buffer->offset < other.buffer->offset + other.buffer->bytes() &&
           other.buffer->offset < buffer->offset + buffer->bytes();
  }
};

class ArgReader {
 public:
  ArgReader(Program& program, std::string op, const ArgMap& args)
      : program_(program), op_(std::move(op)), args_(args) {}

  const std::string& op() const { return op_; }

  [[noreturn]] void fail(const std::string& name, const std::string& message) const {
    throw std::invalid_argument(op_ + ": " + name + " " + message);
  }

  double number(const char* name, double fallback) {
    const ArgValue* value = find(name);
    double x = fallback;
    if (value && std::holds_alternative<double>(*value)) {
      x = std::get<double>(*value);
    } else if (value && std::holds_alternative<int64_t>(*value)) {
      x = static_cast<double>(std::get<int64_t>(*value));
    } else if (value) {
      fail(name, "must be a number");
    }
    if (!std::isfinite(x)) fail(name, value ? "must be finite" : "is missing");
    return x;
  }

  int64_t integer(const char* name, int64_t low, int64_t high) {
    const ArgValue* value = find(name);
    if (!value) fail(name, "is missing");
    return checked_int(name, *value, low, high);
  }

  int64_t integer(const char* name, int64_t low, int64_t high, int64_t fallback) {
    const ArgValue* value = find(name);
    return value ? checked_int(name, *value, low, high) : fallback;
  }

  bool flag(const char* name) { return integer(name, 0, 1, 0) != 0; }

  // The index of a word among `words`.
  template <size_t N>
  int choice(const char* name, const std::array<const char*, N>& words, const char* fallback) {
    const ArgValue* value = find(name);
    if (value && !std::holds_alternative<std::string>(*value)) fail(name, "must be a word");
    if (!value && fallback == nullptr) fail(name, "is missing");
    const std::string word = value ? std::get<std::string>(*value) : fallback;
    std::string all;
    for (size_t i = 0; i < N; ++i) {
      if (word == words[i]) return static_cast<int>(i);
      all += std::string(i == 0 ? "" : ", ") + words[i];
    }
    fail(name, "is '" + word + "'; it must be one of " + all);
  }

  // A buffer with at least `cols` columns from its first column on; empty if there is none.
  Span optional_span(const char* name, BufferType type, int64_t cols) {
    const ArgValue* value = find(name);
    if (!value) return {};
    Span span;
    int64_t id = 0;
    if (std::holds_alternative<BufferRef>(*value)) {
      id = std::get<BufferRef>(*value).id;
      span.first_col = std::get<BufferRef>(*value).first_col;
    } else {
      id = checked_int(name, *value, 0, kMaxDim);
    }
    if (id < 0 || id >= static_cast<int64_t>(program_.buffers_.size())) {
      fail(name, "is buffer " + std::to_string(id) + ", which does not exist");
    }
    span.buffer = &program_.buffers_[static_cast<size_t>(id)];
    check_span(name, span, type, cols);
    return span;
  }

  Span span(const char* name, BufferType type, int64_t cols) {
    const Span s = optional_span(name, type, cols);
    if (!s) fail(name, "is missing");
    return s;
  }

  // All given spans have the same rows; returns which.
  Rows same_rows(std::initializer_list<Span> spans) {
    const Buffer* first = nullptr;
    for (const Span& s : spans) {
      if (!s) continue;
      if (first && s.buffer->rows != first->rows) fail("buffers", "mix token and logits rows");
      first = s.buffer;
    }
    return first->rows;
  }

  void disjoint(const Span& in, const Span& out) {
    if (in.overlaps(out)) fail("the output", "shares memory with an input");
  }

  // `*field` will point at the span as soon as the arena exists.
  template <class T>
  void bind(T** field, const Span& span) {
    if (!span) return;
    const int64_t offset = span.buffer->offset + span.first_col * kFloatBytes;
    pointers_.push_back(
        [field, offset](char* arena) { *field = reinterpret_cast<T*>(arena + offset); });
  }

  // The op reads or writes a KV tensor; `k` and `v` will point at it after bind_kv.
  template <class T>
  void bind_kv(int64_t tensor, int64_t group, WeightKind kind, int32_t num_kv_heads,
               int32_t head_dim, T** k, T** v) {
    auto bind = [k, v](const Program::KvTensor& t) { *k = t.k.data(), *v = t.v.data(); };
    kv_use_ = Program::KvUse{op_, tensor, group, kind, num_kv_heads, head_dim, bind};
  }

  void limit_token_ids(int64_t rows) { vocab_rows_ = rows; }
  void limit_positions(int64_t rows) { rope_positions_ = rows; }
  void use_scratch(AttentionArgs* attention) { attention_ = attention; }

  static int64_t stride(const Span& span) {
    return span ? span.buffer->row_bytes / kFloatBytes : 0;
  }

  const PackedWeight* weight(const char* name) {
    const int64_t last = static_cast<int64_t>(program_.weights_.size()) - 1;
    return &program_.weights_[static_cast<size_t>(integer(name, 0, last))]->packed();
  }

  // A constant of `size` values, or null.
  const float* vector(const char* name, int64_t size) {
    const Program::Const* c = constant(name);
    if (!c) return nullptr;
    if (c->shape.size() != 1 || c->shape[0] != size) {
      fail(name, "must be a vector of " + std::to_string(size) + " values");
    }
    return c->data.data();
  }

  // A table with rows of `cols` values, or null.
  const float* table(const char* name, int64_t cols, int64_t* rows) {
    const Program::Const* c = constant(name);
    if (!c) return nullptr;
    if (c->shape.size() != 2 || c->shape[1] != cols || c->shape[0] < 1) {
      fail(name, "must be a matrix with rows of " + std::to_string(cols) + " values");
    }
    *rows = c->shape[0];
    return c->data.data();
  }

  // Ends reading: an argument that nobody read is an error. Adds the op to the program.
  int64_t commit(std::shared_ptr<void> args, std::initializer_list<Program::Kernel> phases) {
    for (const auto& entry : args_) {
      if (!seen_.count(entry.first)) fail(entry.first, "is not an argument of this op");
    }
    for (auto& pointer : pointers_) program_.arena_pointers_.push_back(std::move(pointer));
    if (kv_use_) program_.kv_uses_.push_back(std::move(*kv_use_));
    if (attention_) program_.attention_ops_.push_back(attention_);
    program_.vocab_rows_ = std::min(program_.vocab_rows_, vocab_rows_);
    program_.rope_positions_ = std::min(program_.rope_positions_, rope_positions_);
    program_.ops_.push_back({op_, std::move(args), program_.phases_.size()});
    for (Program::Kernel kernel : phases) {
      program_.phases_.push_back({kernel, program_.ops_.size() - 1});
    }
    return program_.num_ops() - 1;
  }

 private:
  static constexpr int64_t kFloatBytes = sizeof(float);

  const ArgValue* find(const char* name) {
    seen_.insert(name);
    const auto it = args_.find(name);
    if (it == args_.end() || std::holds_alternative<std::monostate>(it->second)) return nullptr;
    return &it->second;
  }

  int64_t checked_int(const char* name, const ArgValue& value, int64_t low, int64_t high) const {
    if (!std::holds_alternative<int64_t>(value)) fail(name, "must be an integer");
    const int64_t x = std::get<int64_t>(value);
    if (x < low || x > high) {
      fail(name, "is " + std::to_string(x) + "; it must be between " + std::to_string(low) +
                     " and " + std::to_string(high));
    }
    return x;
  }

  void check_span(const char* name, const Span& span, BufferType type, int64_t cols) const {
    const Buffer& b = *span.buffer;
    if (b.type != type) {
      fail(name, type == BufferType::f32 ? "must be an f32 buffer" : "must be a q8 buffer");
    }
    const bool whole = type == BufferType::q8;
    const bool fits = whole ? span.first_col == 0 && b.cols == cols
                            : span.first_col >= 0 && span.first_col <= b.cols - cols;
    if (!fits) {
      fail(name, "has " + std::to_string(b.cols) + " columns, used from " +
                     std::to_string(span.first_col) + "; " + (whole ? "exactly " : "") +
                     std::to_string(cols) + " are needed");
    }
  }

  const Program::Const* constant(const char* name) {
    const ArgValue* value = find(name);
    if (!value) return nullptr;
    const int64_t last = static_cast<int64_t>(program_.consts_.size()) - 1;
    return program_.consts_[static_cast<size_t>(checked_int(name, *value, 0, last))].get();
  }

  Program& program_;
  const std::string op_;
  const ArgMap& args_;
  std::set<std::string> seen_;
  std::vector<std::function<void(char* arena)>> pointers_;
  std::optional<Program::KvUse> kv_use_;
  AttentionArgs* attention_ = nullptr;
  int64_t vocab_rows_ = kMaxDim, rope_positions_ = kMaxDim;
};

}  // namespace vllm
