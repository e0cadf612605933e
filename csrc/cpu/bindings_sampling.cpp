// The sampling functions of vllm._native. Checks every array and token id, then runs one
// SampleArgs on the pool with the GIL released.
#include <nanobind/stl/array.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "bindings.h"
#include "gil.h"
#include "sampling.h"
#include "threads.h"

using namespace nanobind::literals;

namespace vllm {
namespace {

using F32 = Array<const float>;
using I32 = Array<const int32_t>;
using I64 = Array<const int64_t>;

// A numpy array of fresh memory.
template <class T>
struct Output {
  explicit Output(std::vector<size_t> dims) : shape(std::move(dims)) {
    size_t size = 1;
    for (size_t dim : shape) size *= dim;
    memory.reset(new T[std::max<size_t>(size, 1)]);
  }
  nb::object release() {
    T* data = memory.release();
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T>(data, shape.size(), shape.data(), owner));
  }
  std::unique_ptr<T[]> memory;
  std::vector<size_t> shape;
};

// One call: its arguments, and the arrays that they point into.
class Call {
 public:
  Call(SampleOp op, nb::handle logits) {
    args.op = op;
    if (!nb::try_cast(logits, logits_, false) || logits_.ndim() != 2 || !has_plain_rows()) {
      bad_array("logits", "a writable array of float32 [rows, vocab] with contiguous rows");
    }
    if (logits_.shape(1) == 0) bad_array("logits", "at least one column wide");
    args.logits = logits_.data();
    args.rows = static_cast<int64_t>(logits_.shape(0));
    args.vocab = static_cast<int64_t>(logits_.shape(1));
    args.stride = args.rows > 1 ? logits_.stride(0) : args.vocab;
  }

  size_t rows() const { return static_cast<size_t>(args.rows); }

  const float* floats(const char* name, nb::handle source) {
    return keep(floats_, read_vector<const float>(name, source, rows()));
  }
  const float* optional_floats(const char* name, nb::handle source) {
    return source.is_none() ? nullptr : floats(name, source);
  }
  const int32_t* ints(const char* name, nb::handle source, size_t size) {
    return keep(ints_, read_vector<const int32_t>(name, source, size));
  }
  const int64_t* longs(const char* name, nb::handle source) {
    return keep(longs_, read_vector<const int64_t>(name, source, rows()));
  }

  const int32_t* token_ids(const char* name, nb::handle source, size_t size) {
    const int32_t* ids = ints(name, source, size);
    for (size_t i = 0; i < size; ++i) check_index(name, ids[i], args.vocab);
    return ids;
  }

  TokenLists lists(nb::handle offsets, nb::handle ids, nb::handle values) {
    TokenLists out;
    out.offsets = keep(longs_, read_vector<const int64_t>("offsets", offsets, rows() + 1));
    if (out.offsets[0] != 0 || !std::is_sorted(out.offsets, out.offsets + rows() + 1)) {
      bad_array("offsets", "increasing, from 0");
    }
    const auto total = static_cast<size_t>(out.offsets[rows()]);
    out.ids = token_ids("ids", ids, total);
    if (values.is_valid()) {
      out.values = keep(floats_, read_vector<const float>("values", values, total));
    }
    return out;
  }

  static void check_index(const char* name, int64_t value, int64_t limit) {
    if (value >= 0 && value < limit) return;
    bad_array(name, "between 0 and " + std::to_string(limit - 1) + ", not " +
                        std::to_string(value));
  }

  void run() {
    if (args.rows == 0) return;
    const auto pool = current_pool();
    const KernelTable& kernels = current_kernels();
    const ReleasedGil released;
    const size_t bytes = sample_scratch_bytes(args.vocab);
    pool->run(
        [&](int ith, int nth) {
          SampleArgs own = args;
          own.scratch = static_cast<char*>(pool->scratch(ith));
          is_edit(own.op) ? edit_logits(own, ith, nth) : kernels.sample(own, ith, nth);
        },
        bytes);
  }

  SampleArgs args{};

 private:
  bool has_plain_rows() const {
    const auto rows = logits_.shape(0), vocab = logits_.shape(1);
    if (rows == 0 || vocab == 0) return true;   // numpy gives no meaningful strides then
    return vocab < INT32_MAX && (vocab == 1 || logits_.stride(1) == 1) &&
           (rows == 1 || logits_.stride(0) >= static_cast<int64_t>(vocab));
  }

  template <class T>
  const T* keep(std::vector<Array<const T>>& arrays, Array<const T> array) {
    arrays.push_back(std::move(array));
    return arrays.back().data();
  }

  nb::ndarray<float, nb::device::cpu> logits_;
  std::vector<F32> floats_;
  std::vector<I32> ints_;
  std::vector<I64> longs_;
};

// ---- edits in place ---------------------------------------------------------------------------

template <SampleOp op>
void edit_by_lists(nb::object logits, nb::object offsets, nb::object ids) {
  Call call(op, logits);
  call.args.lists = call.lists(offsets, ids, nb::handle());
  call.run();
}

void add_bias(nb::object logits, nb::object offsets, nb::object ids, nb::object values) {
  Call call(SampleOp::add_bias, logits);
  call.args.lists = call.lists(offsets, ids, values);
  call.run();
}

void apply_bitmask(nb::object logits, nb::object rows, nb::object bitmask) {
  Call call(SampleOp::bitmask, logits);
  const I32 masks = read_array<const int32_t>("bitmask", bitmask, 2);
  const auto words = static_cast<size_t>((call.args.vocab + 31) / 32);
  if (masks.shape(1) != words) {
    bad_array("bitmask", "[masks, " + std::to_string(words) + "]: one bit per token");
  }
  call.args.bitmask_rows = call.ints("rows", rows, masks.shape(0));
  call.args.bitmask = masks.data();
  call.args.num_masks = static_cast<int64_t>(masks.shape(0));
  call.args.mask_words = static_cast<int64_t>(words);
  std::vector<bool> used(call.rows());
  for (int64_t i = 0; i < call.args.num_masks; ++i) {
    const int32_t row = call.args.bitmask_rows[i];
    Call::check_index("rows", row, call.args.rows);
    if (used[static_cast<size_t>(row)]) bad_array("rows", "different from each other");
    used[static_cast<size_t>(row)] = true;
  }
  call.run();
}

void apply_penalties(nb::object logits, nb::object repetition, nb::object frequency,
                     nb::object presence, nb::object prompt_offsets, nb::object prompt_ids,
                     nb::object output_offsets, nb::object output_ids) {
  Call call(SampleOp::penalties, logits);
  call.args.repetition = call.floats("repetition", repetition);
  call.args.frequency = call.floats("frequency", frequency);
  call.args.presence = call.floats("presence", presence);
  call.args.prompt = call.lists(prompt_offsets, prompt_ids, nb::handle());
  call.args.lists = call.lists(output_offsets, output_ids, nb::handle());
  call.run();
}

// ---- choosing ---------------------------------------------------------------------------------

void read_truncation(Call& call, nb::handle temperature, nb::handle top_k, nb::handle top_p,
                     nb::handle min_p) {
  SampleArgs& a = call.args;
  a.temperature = call.floats("temperature", temperature);
  a.top_k = top_k.is_none() ? nullptr : call.ints("top_k", top_k, call.rows());
  a.top_p = call.optional_floats("top_p", top_p);
  a.min_p = call.optional_floats("min_p", min_p);
  for (size_t r = 0; r < call.rows(); ++r) {
    if (!(a.temperature[r] >= 0 && a.temperature[r] <= 1e6f)) {
      bad_array("temperature", "0 or a positive number");
    }
    if (a.top_k && a.top_k[r] < 0) bad_array("top_k", "0 (off) or a positive number");
    if (a.top_p && !(a.top_p[r] > 0 && a.top_p[r] <= 1)) bad_array("top_p", "in (0, 1]");
    if (a.min_p && !(a.min_p[r] >= 0 && a.min_p[r] <= 1)) bad_array("min_p", "in [0, 1]");
  }
}

nb::object argmax(nb::object logits) {
  Call call(SampleOp::argmax, logits);
  Output<int32_t> tokens({call.rows()});
  call.args.tokens = tokens.memory.get();
  call.run();
  return tokens.release();
}

void process_logits(nb::object logits, nb::object temperature, nb::object top_k, nb::object top_p,
                    nb::object min_p) {
  Call call(SampleOp::process, logits);
  read_truncation(call, temperature, top_k, top_p, min_p);
  call.run();
}

nb::object sample(nb::object logits, nb::object temperature, nb::object top_k, nb::object top_p,
                  nb::object min_p, nb::object seeds, nb::object positions) {
  Call call(SampleOp::draw, logits);
  read_truncation(call, temperature, top_k, top_p, min_p);
  call.args.seeds = call.longs("seeds", seeds);
  call.args.positions = call.longs("positions", positions);
  Output<int32_t> tokens({call.rows()});
  call.args.tokens = tokens.memory.get();
  call.run();
  return tokens.release();
}

// ---- log-probabilities ------------------------------------------------------------------------

nb::object logprobs(nb::object logits, nb::object token_ids, int64_t top_n) {
  Call call(SampleOp::logprobs, logits);
  if (top_n < 0 || top_n > call.args.vocab) {
    bad_array("top_n", "between 0 and the vocabulary, " + std::to_string(call.args.vocab));
  }
  std::vector<int32_t> chosen(call.rows());
  const int32_t* ids = call.token_ids("token_ids", token_ids, call.rows());
  std::copy(ids, ids + call.rows(), chosen.begin());
  const auto n = static_cast<size_t>(top_n);
  Output<float> values({call.rows()}), top_values({call.rows(), n});
  Output<int32_t> ranks({call.rows()}), top_ids({call.rows(), n});
  call.args.tokens = chosen.data();
  call.args.logprobs = values.memory.get();
  call.args.ranks = ranks.memory.get();
  call.args.top_n = top_n;
  call.args.top_ids = top_ids.memory.get();
  call.args.top_logprobs = top_values.memory.get();
  call.run();
  return nb::make_tuple(values.release(), ranks.release(), top_ids.release(), top_values.release());
}

nb::object token_logprobs(nb::object logits, nb::object offsets, nb::object ids) {
  Call call(SampleOp::token_logprobs, logits);
  call.args.lists = call.lists(offsets, ids, nb::handle());
  const auto total = static_cast<size_t>(call.args.lists.offsets[call.rows()]);
  Output<float> values({total});
  Output<int32_t> ranks({total});
  call.args.logprobs = values.memory.get();
  call.args.ranks = ranks.memory.get();
  call.run();
  return nb::make_tuple(values.release(), ranks.release());
}

// ---- random numbers ---------------------------------------------------------------------------

nb::object philox_uniform(nb::object seeds, nb::object positions) {
  const I64 s = read_array<const int64_t>("seeds", seeds, 1);
  const I64 p = read_vector<const int64_t>("positions", positions, s.shape(0));
  Output<double> out({s.shape(0)});
  for (size_t i = 0; i < s.shape(0); ++i) {
    out.memory[i] = Philox::uniform(s.data()[i], p.data()[i]);
  }
  return out.release();
}

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  const Philox r =
      Philox::bits({counter[0], counter[1], counter[2], counter[3]}, key[0], key[1]);
  return {r.x[0], r.x[1], r.x[2], r.x[3]};
}

}  // namespace

void define_sampling(nb::module_& m) {
  m.def("argmax", &argmax, "logits"_a);
  m.def("mask_allowed", &edit_by_lists<SampleOp::mask_allowed>, "logits"_a, "offsets"_a, "ids"_a);
  m.def("mask_banned", &edit_by_lists<SampleOp::mask_banned>, "logits"_a, "offsets"_a, "ids"_a);
  m.def("apply_bitmask", &apply_bitmask, "logits"_a, "rows"_a, "bitmask"_a);
  m.def("add_bias", &add_bias, "logits"_a, "offsets"_a, "ids"_a, "values"_a);
  m.def("apply_penalties", &apply_penalties, "logits"_a, "repetition"_a, "frequency"_a,
        "presence"_a, "prompt_offsets"_a, "prompt_ids"_a, "output_offsets"_a, "output_ids"_a);
  m.def("process_logits", &process_logits, "logits"_a, "temperature"_a, "top_k"_a = nb::none(),
        "top_p"_a = nb::none(), "min_p"_a = nb::none());
  m.def("sample", &sample, "logits"_a, "temperature"_a, "top_k"_a.none(), "top_p"_a.none(),
        "min_p"_a.none(), "seeds"_a, "positions"_a);
  m.def("logprobs", &logprobs, "logits"_a, "token_ids"_a, "top_n"_a);
  m.def("token_logprobs", &token_logprobs, "logits"_a, "offsets"_a, "ids"_a);
  m.def("philox_uniform", &philox_uniform, "seeds"_a, "positions"_a);
  m.def("philox4x32", &philox4x32, "counter"_a, "key"_a);
}

}  // namespace vllm
