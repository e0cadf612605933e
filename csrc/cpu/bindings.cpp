// The module vllm._native: every native op that Python can reach.
//
//   threads   set_num_threads, num_threads, isas, set_isa, isa
//   Weight    a packed matrix
//   Program   the step program; its ops are listed in program_ops.cpp
//   sampling  functions over logits [rows, vocab], in bindings_sampling.cpp
//
// Wrong values raise ValueError here or in program.cpp, before any kernel sees them. The module
// is documented for Python in vllm/kernels/native.py.
#include "bindings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>

#include "gil.h"
#include "program.h"
#include "threads.h"

using namespace nanobind::literals;

namespace vllm {

// ---- the running ISA --------------------------------------------------------------------------

namespace {

const KernelTable*& kernels_in_use() {
  static const KernelTable* table = best_kernels();
  return table;
}

void set_isa(const std::string& name) {
  const KernelTable* table = kernels_by_name(name.c_str());
  if (table == nullptr) {
    throw std::invalid_argument("isa '" + name + "' is unknown or this CPU does not have it");
  }
  kernels_in_use() = table;
}

}  // namespace

const KernelTable& current_kernels() { return *kernels_in_use(); }

namespace {

// ---- words ------------------------------------------------------------------------------------

template <size_t N>
int index_of(const char* what, const std::array<const char*, N>& words, const std::string& word) {
  const auto it = std::find(words.begin(), words.end(), word);
  if (it != words.end()) return static_cast<int>(it - words.begin());
  std::string all;
  for (const char* w : words) all += std::string(all.empty() ? "" : ", ") + w;
  throw std::invalid_argument(std::string(what) + " is '" + word + "'; it must be one of " + all);
}

constexpr std::array kWeightKinds = {"f32", "f16", "bf16", "q8", "q4"};
constexpr std::array kSourceTypes = {"f32",  "f16",  "bf16", "q4_0", "q4_1", "q5_0",
                                     "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"};

SourceType source_type(const std::string& word) {
  return static_cast<SourceType>(index_of("src_type", kSourceTypes, word));
}

BufferType buffer_type(const std::string& word) {
  return static_cast<BufferType>(index_of("dtype", std::array{"f32", "q8"}, word));
}

// ---- Weight -----------------------------------------------------------------------------------

std::shared_ptr<Weight> new_weight(const std::string& kind, int32_t group, bool has_min, int64_t n,
                                   int64_t k) {
  const auto weight_kind = static_cast<WeightKind>(index_of("kind", kWeightKinds, kind));
  return std::make_shared<Weight>(current_kernels(), weight_kind, group, has_min, n, k);
}

void weight_pack(Weight& self, int64_t row0, nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> src,
                 const std::string& src_type, int64_t n_rows) {
  const SourceType type = source_type(src_type);
  const auto pool = current_pool();
  const ReleasedGil released;
  self.pack(*pool, row0, n_rows, src.data(), src.nbytes(), type);
}

nb::object weight_unpack(const Weight& self) {
  const auto n = static_cast<size_t>(self.packed().n), k = static_cast<size_t>(self.packed().k);
  auto owned = std::make_unique<float[]>(n * k);
  float* data = owned.get();
  const auto pool = current_pool();
  {
    const ReleasedGil released;
    self.unpack(*pool, data);
  }
  nb::capsule owner(owned.release(), [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, float>(data, {n, k}, owner));
}

const char* weight_kind(const Weight& self) {
  return kWeightKinds[static_cast<size_t>(self.packed().kind)];
}

// ---- Program: building ------------------------------------------------------------------------

ArgValue arg_value(const std::string& name, nb::handle value) {
  if (value.is_none()) return std::monostate();
  if (nb::isinstance<nb::int_>(value)) return nb::cast<int64_t>(value);
  if (nb::isinstance<nb::float_>(value)) return nb::cast<double>(value);
  if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
  if (nb::isinstance<nb::tuple>(value) && nb::len(value) == 2) {
    std::pair<int64_t, int64_t> ref;
    if (nb::try_cast(value, ref)) return BufferRef{ref.first, ref.second};
  }
  throw std::invalid_argument(name + " must be None, a number, a word or (buffer, first column)");
}

int64_t program_add(Program& self, const std::string& op, nb::dict args) {
  ArgMap map;
  for (auto [key, value] : args) {
    const auto name = nb::cast<std::string>(key);
    map[name] = arg_value(op + ": " + name, value);
  }
  return self.add_op(op, map);
}

int64_t program_buffer(Program& self, const std::string& rows, int64_t cols,
                       const std::string& dtype, std::optional<int64_t> offset_bytes) {
  const auto kind = static_cast<Rows>(index_of("rows", std::array{"tokens", "logits"}, rows));
  return self.add_buffer(kind, cols, buffer_type(dtype), offset_bytes);
}

int64_t program_const(Program& self, nb::handle values) {
  Array<const float> array;
  if (!nb::try_cast(values, array, false) || array.ndim() < 1 || array.ndim() > 2 ||
      array.size() == 0) {
    bad_array("a constant", "a C-contiguous array of float32 with 1 or 2 dimensions, not empty");
  }
  return self.add_const(array.data(), {array.shape_ptr(), array.shape_ptr() + array.ndim()});
}

// ---- Program: running -------------------------------------------------------------------------

// An entry of a dict or an attribute of any other object.
nb::object field(nb::handle params, const char* name) {
  if (!nb::isinstance<nb::dict>(params)) return nb::getattr(params, name);
  const nb::dict dict = nb::borrow<nb::dict>(params);
  if (!dict.contains(name)) bad_array(name, "given");
  return dict[name];
}

// The inputs of one step; keeps the arrays alive that `step` points into.
class StepInputs {
 public:
  StepInputs(const Program& program, nb::handle params) {
    token_ids_ = read_array<const int32_t>("token_ids", field(params, "token_ids"), 1);
    const size_t num_tokens = token_ids_.shape(0);
    positions_ = read_vector<const int32_t>("positions", field(params, "positions"), num_tokens);
    logits_ = read_array<const int32_t>("logits_indices", field(params, "logits_indices"), 1);
    seq_lens_ = read_array<const int32_t>("seq_lens", field(params, "seq_lens"), 1);
    const size_t num_seqs = seq_lens_.shape(0);
    query_start_ =
        read_vector<const int32_t>("query_start", field(params, "query_start"), num_seqs + 1);
    read_groups(static_cast<size_t>(program.num_groups()), params, num_tokens, num_seqs);
    step.num_tokens = static_cast<int64_t>(num_tokens);
    step.num_logits = static_cast<int64_t>(logits_.shape(0));
    step.num_seqs = static_cast<int64_t>(num_seqs);
    step.token_ids = token_ids_.data();
    step.positions = positions_.data();
    step.logits_indices = logits_.data();
    step.query_start = query_start_.data();
    step.seq_lens = seq_lens_.data();
    step.num_groups = static_cast<int32_t>(program.num_groups());
    step.slot_mapping = slots_.data();
    step.block_tables = tables_.data();
    step.block_size = static_cast<int32_t>(program.block_size());
  }

  StepParams step{};

 private:
  void read_groups(size_t num_groups, nb::handle params, size_t num_tokens, size_t num_seqs) {
    if (num_groups == 0) return;
    const nb::object slots = field(params, "slot_mapping"), tables = field(params, "block_tables");
    if (nb::len(slots) != num_groups) bad_array("slot_mapping", "a list with one array per group");
    if (nb::len(tables) != num_groups) bad_array("block_tables", "a list with one array per group");
    for (size_t g = 0; g < num_groups; ++g) {
      slot_arrays_.push_back(read_vector<const int64_t>("slot_mapping", slots[g], num_tokens));
      table_arrays_.push_back(read_array<const int32_t>("block_tables", tables[g], 2));
      const auto& table = table_arrays_.back();
      if (table.shape(0) != num_seqs || table.shape(1) != table_arrays_[0].shape(1)) {
        bad_array("block_tables", "arrays [sequences, blocks] of the same shape");
      }
      slots_.push_back(slot_arrays_.back().data());
      tables_.push_back(table.data());
    }
    step.max_blocks = static_cast<int64_t>(table_arrays_[0].shape(1));
  }

  Array<const int32_t> token_ids_, positions_, logits_, query_start_, seq_lens_;
  std::vector<Array<const int64_t>> slot_arrays_;
  std::vector<Array<const int32_t>> table_arrays_;
  std::vector<const int64_t*> slots_;
  std::vector<const int32_t*> tables_;
};

void program_run(Program& self, nb::object params, int64_t first, std::optional<int64_t> last) {
  const StepInputs inputs(self, params);
  const auto pool = current_pool();
  const ReleasedGil released;
  self.run(*pool, inputs.step, first, last.value_or(self.num_ops()));
}

// ---- Program: looking inside ------------------------------------------------------------------

nb::object program_array(nb::handle_t<Program> self, int64_t id) {
  Program& program = nb::cast<Program&>(self);
  const Buffer b = program.buffer(id);
  void* data = program.buffer_data(id);
  const auto rows = static_cast<size_t>(b.num_rows);
  if (b.type == BufferType::q8) {
    const auto bytes = static_cast<size_t>(b.row_bytes);
    return nb::cast(nb::ndarray<nb::numpy, uint8_t>(data, {rows, bytes}, self));
  }
  const auto cols = static_cast<size_t>(b.cols);
  return nb::cast(nb::ndarray<nb::numpy, float>(data, {rows, cols}, self, {b.row_bytes / 4, 1}));
}

nb::object kv_view(nb::handle owner, WeightKind kind, void* data, std::array<size_t, 4> shape) {
  nb::dlpack::dtype type = nb::dtype<uint16_t>();   // bf16 has no numpy type: its bits
  if (kind == WeightKind::f32) type = nb::dtype<float>();
  if (kind == WeightKind::f16) type = {static_cast<uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};
  return nb::cast(nb::ndarray<nb::numpy>(data, shape.size(), shape.data(), owner, nullptr, type));
}

std::pair<nb::object, nb::object> program_kv(nb::handle_t<Program> self, int64_t index) {
  const Program& program = nb::cast<Program&>(self);
  const Program::KvTensor& t = program.kv_tensor(index);
  const auto blocks = static_cast<size_t>(program.num_blocks());
  const auto size = static_cast<size_t>(program.block_size());
  const auto heads = static_cast<size_t>(t.num_kv_heads), dim = static_cast<size_t>(t.head_dim);
  return {kv_view(self, t.kind, t.k.data(), {blocks, heads, dim, size}),
          kv_view(self, t.kind, t.v.data(), {blocks, heads, size, dim})};
}

std::vector<std::tuple<std::string, int64_t, double>> program_timings(const Program& self) {
  std::vector<std::tuple<std::string, int64_t, double>> rows;
  for (const OpTiming& t : self.timings()) rows.emplace_back(t.name, t.calls, t.seconds);
  return rows;
}

void define_classes(nb::module_& m) {
  nb::class_<Weight>(m, "Weight")
      .def(nb::new_(&new_weight), "kind"_a, "group"_a, "has_min"_a, "n"_a, "k"_a)
      .def("pack", &weight_pack, "row0"_a, "src"_a, "src_type"_a, "n_rows"_a)
      .def("unpack", &weight_unpack)
      .def_prop_ro("shape", [](const Weight& w) { return std::pair(w.packed().n, w.packed().k); })
      .def_prop_ro("isa", [](const Weight& w) { return w.kernels().isa; })
      .def_prop_ro("kind", &weight_kind)
      .def_prop_ro("nbytes", [](const Weight& w) { return w.packed().bytes; });
  nb::class_<Program>(m, "Program")
      .def("__init__",
           [](Program* p, int64_t max_tokens, int64_t max_logits, int64_t max_seqs, int32_t bits) {
             new (p) Program(current_kernels(), max_tokens, max_logits, max_seqs, bits);
           },
           "max_tokens"_a, "max_logits"_a, "max_seqs"_a, "activation_bits"_a = 16)
      .def("buffer", &program_buffer, "rows"_a, "cols"_a, "dtype"_a = "f32",
           "offset_bytes"_a = nb::none())
      .def("const", &program_const, "values"_a)
      .def("weight", &Program::add_weight, "weight"_a)
      .def("add", &program_add, "op"_a, "args"_a)
      .def("bind_kv", &Program::bind_kv, "num_blocks"_a, "block_size"_a, "num_tensors"_a,
           "num_groups"_a)
      .def("run", &program_run, "params"_a, "first"_a = 0, "last"_a = nb::none())
      .def("array", &program_array, "buffer"_a)
      .def("kv_arrays", &program_kv, "kv_tensor"_a)
      .def("set_timing", &Program::set_timing, "on"_a)
      .def("timings", &program_timings)
      .def_prop_ro("num_ops", &Program::num_ops)
      .def_prop_ro("arena_bytes", &Program::arena_bytes);
}

}  // namespace
}  // namespace vllm

NB_MODULE(_native, m) {
  using namespace vllm;
  m.def("isas", [] {
    std::vector<std::string> names;
    for (const KernelTable* table : supported_kernels()) names.emplace_back(table->isa);
    return names;
  });
  m.def("isa", [] { return current_kernels().isa; });
  m.def("set_isa", &set_isa, "name"_a);
  m.def("set_num_threads", &configure_pool, "n"_a, "cpus"_a = std::vector<int>());
  m.def("num_threads", [] { return current_pool()->size(); });
  m.def("row_bytes",
        [](int64_t cols, const std::string& dtype) {
          return buffer_row_bytes(cols, buffer_type(dtype));
        },
        "cols"_a, "dtype"_a = "f32");
  m.def("source_row_bytes",
        [](const std::string& src_type, int64_t k) {
          return source_row_bytes(source_type(src_type), k);
        },
        "src_type"_a, "k"_a);
  define_classes(m);
  define_sampling(m);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] {
    ReleasedGil::stop_other_threads();
    shut_down_pool();
  }));
  ReleasedGil::watch_forks();
}
