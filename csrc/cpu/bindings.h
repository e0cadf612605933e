// Shared by the binding files: reading numpy arrays with errors that name the argument.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "kernels.h"

namespace vllm {

namespace nb = nanobind;

const KernelTable& current_kernels();

template <class T>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

template <class T>
const char* type_name() {
  if constexpr (std::is_same_v<std::remove_const_t<T>, float>) return "float32";
  else if constexpr (std::is_same_v<std::remove_const_t<T>, int64_t>) return "int64";
  else if constexpr (std::is_same_v<std::remove_const_t<T>, int32_t>) return "int32";
  else return "uint8";
}

[[noreturn]] inline void bad_array(const char* name, const std::string& expected) {
  throw nb::value_error((std::string(name) + " must be " + expected).c_str());
}

// A C-contiguous, aligned array of T with `ndim` dimensions; `name` is for the error.
template <class T>
Array<T> read_array(const char* name, nb::handle source, size_t ndim) {
  Array<T> array;
  if (!nb::try_cast(source, array, false) || array.ndim() != ndim ||
      reinterpret_cast<uintptr_t>(array.data()) % alignof(T) != 0) {
    bad_array(name, std::string("a C-contiguous array of ") + type_name<T>() + " with " +
                        std::to_string(ndim) + (ndim == 1 ? " dimension" : " dimensions"));
  }
  return array;
}

template <class T>
Array<T> read_vector(const char* name, nb::handle source, size_t size) {
  Array<T> array = read_array<T>(name, source, 1);
  if (array.shape(0) != size) {
    bad_array(name, "of length " + std::to_string(size) + ", not " +
                        std::to_string(array.shape(0)));
  }
  return array;
}

void define_sampling(nb::module_& m);   // bindings_sampling.cpp

}  // namespace vllm
