// Checkpoint rows to packed weights (layout: packed.h) and back.
//
// Quantised rows keep their integers, scales and minima whenever the weight has room for them; the
// products of scales in blocks of 256 are rounded to f16 (relative error 2^-11) where the weight's
// scales are f16. Everything else goes through float and is rounded to the nearest value that the
// weight can hold. The rows of a call are divided over the threads.
#include "blocks.h"
#include "dot.h"
#include "isa.h"
#include "packed.h"

namespace vllm {
namespace VLLM_ISA {
namespace {

VLLM_INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

VLLM_INLINE uint8_t* data_of(const PackedWeight& w) {
  return static_cast<uint8_t*>(const_cast<void*>(w.data));
}

// ---- float values of a source row -------------------------------------------------------------

template <class T>
void widen_all(const uint8_t* from, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(out + i, load(reinterpret_cast<const T*>(from + i * sizeof(T))));
  }
  for (; i < n; ++i) out[i] = widen(load_as<T>(from + i * sizeof(T)));
}

// Values [first, first + n) of a row.
void read_floats(const uint8_t* row, SourceType type, int64_t first, int64_t n, float* out) {
  switch (type) {
    case SourceType::f32: return widen_all<float>(row + 4 * first, n, out);
    case SourceType::f16: return widen_all<Half>(row + 2 * first, n, out);
    case SourceType::bf16: return widen_all<BFloat>(row + 2 * first, n, out);
    default: break;
  }
  Group group;
  for (int64_t i = 0; i < n; ++i) {
    const int j = static_cast<int>((first + i) % 32);
    if (i == 0 || j == 0) read_group(row, type, (first + i) / 32, group);
    out[i] = value_of(group, j);
  }
}

// ---- quantised weights ------------------------------------------------------------------------

// One group of one row: where its scale, its min and its bytes are.
class Place {
 public:
  Place(const PackedWeight& w, const QuantLayout& layout, int64_t row, int64_t group)
      : w_(w), layout_(layout) {
    uint8_t* p = data_of(w) + row / kLanes * layout.panel_bytes + group * layout.group_bytes;
    const int64_t lane = row % kLanes;
    scale_ = p + lane * layout.scale_bytes;
    values_ = p + layout.values + lane * 4;
  }

  void put_scales(float scale, float min) const {
    put_scale(scale_, scale);
    if (w_.has_min) put_scale(scale_ + layout_.mins, min);
  }
  void put_half_scales(uint16_t scale, uint16_t min) const {
    __builtin_memcpy(scale_, &scale, 2);
    __builtin_memcpy(scale_ + layout_.mins, &min, 2);
  }
  float scale() const { return get_scale(scale_); }
  float min() const { return w_.has_min ? get_scale(scale_ + layout_.mins) : 0.0f; }

  // Four values from k = 4 j of the group on.
  uint8_t* word(int64_t j) const { return values_ + j * 4 * kLanes; }

 private:
  void put_scale(uint8_t* p, float x) const {
    const uint16_t h = float_to_half(x);
    if (layout_.scale_bytes == 4) __builtin_memcpy(p, &x, 4);
    else __builtin_memcpy(p, &h, 2);
  }
  float get_scale(const uint8_t* p) const {
    return layout_.scale_bytes == 4 ? load_as<float>(p) : half_at(p);
  }

  const PackedWeight& w_;
  const QuantLayout& layout_;
  uint8_t *scale_, *values_;
};

// Values [first, first + n) of the group; n is 16 or 32, and 32 for 4 bits.
void put_values(WeightKind kind, const Place& place, int64_t first, int n, const int8_t* q) {
  uint8_t bytes[32];
  if (kind == WeightKind::q4) {
    for (int i = 0; i < 16; ++i) bytes[i] = static_cast<uint8_t>(q[i] | q[i + 16] << 4);
    for (int j = 0; j < 4; ++j) __builtin_memcpy(place.word(first / 8 + j), bytes + 4 * j, 4);
    return;
  }
  for (int i = 0; i < n; ++i) bytes[i] = static_cast<uint8_t>(q[i]) ^ kByteBias;
  for (int j = 0; j < n / 4; ++j) __builtin_memcpy(place.word(first / 4 + j), bytes + 4 * j, 4);
}

void get_values(WeightKind kind, const Place& place, int64_t first, int n, int8_t* q) {
  uint8_t bytes[32];
  if (kind == WeightKind::q4) {
    for (int j = 0; j < 4; ++j) __builtin_memcpy(bytes + 4 * j, place.word(first / 8 + j), 4);
    return read_nibbles(bytes, q);
  }
  for (int j = 0; j < n / 4; ++j) __builtin_memcpy(bytes + 4 * j, place.word(first / 4 + j), 4);
  for (int i = 0; i < n; ++i) q[i] = to_int8(bytes[i] ^ kByteBias);
}

// Can the weight hold the integers of such rows as they are?
bool holds(const PackedWeight& w, SourceType type) {
  switch (type) {
    case SourceType::q4_0:
    case SourceType::q4_1:
    case SourceType::q4_k: return w.group == 32 && w.has_min;
    case SourceType::q5_1:
    case SourceType::q5_k: return w.group == 32 && w.has_min && w.kind == WeightKind::q8;
    case SourceType::q5_0:
    case SourceType::q8_0: return w.group <= 32 && w.kind == WeightKind::q8;
    case SourceType::q6_k: return w.group == 16 && w.kind == WeightKind::q8;
    default: return false;
  }
}

// Blocks of q4_0 (d | 16 bytes) and q4_1 (d | m | 16 bytes) have the nibbles where the weight wants
// them, so this is only a copy: 17 G values/s.
void copy_nibbles(const PackedWeight& w, const QuantLayout& layout, int64_t row,
                  const uint8_t* src, bool has_min) {
  for (int64_t g = 0; g < w.k / 32; ++g) {
    const Place place(w, layout, row, g);
    const uint16_t scale = load_as<uint16_t>(src);
    const uint16_t min = has_min ? load_as<uint16_t>(src + 2)
                                 : float_to_half(-8.0f * half_to_float(scale));
    place.put_half_scales(scale, min);
    src += has_min ? 4 : 2;
    for (int j = 0; j < 4; ++j, src += 4) __builtin_memcpy(place.word(j), src, 4);
  }
}

void copy_integers(const PackedWeight& w, const QuantLayout& layout, int64_t row,
                   const uint8_t* src, SourceType type) {
  if (w.kind == WeightKind::q4 && type != SourceType::q4_k) {
    return copy_nibbles(w, layout, row, src, type == SourceType::q4_1);
  }
  const int parts = 32 / w.group, n = w.group;
  Group group;
  for (int64_t g = 0; g < w.k / 32; ++g) {
    read_group(src, type, g, group);
    for (int part = 0; part < parts; ++part) {
      const Place place(w, layout, row, g * parts + part);
      place.put_scales(group.scale[part], group.min);
      put_values(w.kind, place, 0, n, group.q + part * n);
    }
  }
}

// x clipped to [low, high] and rounded; NaN becomes low.
int8_t nearest(float x, float low, float high) {
  const float clipped = x > low ? (x < high ? x : high) : low;
  return static_cast<int8_t>(__builtin_rintf(clipped));
}

// The nearest integers to a group of floats, with the scale that spans their range.
class Rounding {
 public:
  Rounding(const PackedWeight& w, const QuantLayout& layout, const float* x)
      : first_(w.kind == WeightKind::q4 ? 0.0f : w.has_min ? -128.0f : -127.0f),
        last_(w.kind == WeightKind::q4 ? 15.0f : 127.0f) {
    float low = x[0], high = x[0];
    for (int i = 1; i < w.group; ++i) {
      low = x[i] < low ? x[i] : low;
      high = x[i] > high ? x[i] : high;
    }
    const bool rounded = layout.scale_bytes == 2;
    if (w.has_min) {
      scale_ = storable((high - low) / (last_ - first_), rounded);
      min_ = storable(low - first_ * scale_, rounded);
    } else {
      scale_ = storable((high > -low ? high : -low) / last_, rounded);
    }
    inverse_ = scale_ > 0.0f ? 1.0f / scale_ : 0.0f;
  }
  float scale() const { return scale_; }
  float min() const { return min_; }
  int8_t operator()(float x) const { return nearest((x - min_) * inverse_, first_, last_); }

 private:
  static float storable(float x, bool rounded) {
    if (!rounded) return x;
    return half_to_float(float_to_half(x > -65504.0f ? (x < 65504.0f ? x : 65504.0f) : -65504.0f));
  }
  float first_, last_, scale_, min_ = 0.0f, inverse_;
};

void quantise_row(const PackedWeight& w, const QuantLayout& layout, int64_t row,
                  const uint8_t* src, SourceType type) {
  for (int64_t g = 0; g < layout.groups; ++g) {
    // The padding repeats the last value, so that it does not widen the range.
    float x[128] = {};
    const int64_t n = min_of(w.group, w.k - g * w.group);
    if (n > 0) read_floats(src, type, g * w.group, n, x);
    for (int64_t i = n > 0 ? n : 1; i < w.group; ++i) x[i] = x[i - 1];
    const Rounding rounding(w, layout, x);
    const Place place(w, layout, row, g);
    place.put_scales(rounding.scale(), rounding.min());
    int8_t q[128];
    for (int i = 0; i < w.group; ++i) q[i] = rounding(x[i]);
    for (int i = 0; i < w.group; i += 32) put_values(w.kind, place, i, w.group < 32 ? 16 : 32, q + i);
  }
}

void pack_quantised(const PackedWeight& w, int64_t row, int64_t n_rows, const uint8_t* src,
                    int64_t src_bytes, SourceType type) {
  const QuantLayout layout(w);
  const bool exact = holds(w, type);
  for (int64_t i = 0; i < n_rows; ++i, src += src_bytes) {
    if (exact) copy_integers(w, layout, row + i, src, type);
    else quantise_row(w, layout, row + i, src, type);
  }
}

void unpack_quantised(const PackedWeight& w, int64_t row, float* dst) {
  const QuantLayout layout(w);
  for (int64_t g = 0; g < layout.groups; ++g) {
    const Place place(w, layout, row, g);
    const float scale = place.scale(), min = place.min();
    for (int64_t i = 0; i < w.group && g * w.group + i < w.k; i += 32) {
      int8_t q[32];
      get_values(w.kind, place, i, w.group < 32 ? 16 : 32, q);
      const int64_t first = g * w.group + i, n = min_of(w.group < 32 ? 16 : 32, w.k - first);
      for (int64_t j = 0; j < n; ++j) dst[first + j] = scale * static_cast<float>(q[j]) + min;
    }
  }
}

// ---- float weights ----------------------------------------------------------------------------

template <class T>
T* column_of(const PackedWeight& w, int64_t row) {
  return reinterpret_cast<T*>(data_of(w)) + row / kFloatPanel * w.k * kFloatPanel + row % kFloatPanel;
}

constexpr bool same(SourceType type, const float*) { return type == SourceType::f32; }
constexpr bool same(SourceType type, const Half*) { return type == SourceType::f16; }
constexpr bool same(SourceType type, const BFloat*) { return type == SourceType::bf16; }

constexpr int64_t kStep = 64;   // values of k that are converted at once

// Values [k, k + n) of a row as T, to every kFloatPanel-th place of `to`.
template <class T>
void pack_step(const uint8_t* row, SourceType type, int64_t k, int64_t n, T* to) {
  T values[kStep];
  if (same(type, to)) {
    __builtin_memcpy(values, row + k * sizeof(T), static_cast<size_t>(n) * sizeof(T));
  } else {
    float x[kStep] = {};
    read_floats(row, type, k, n, x);
    for (int64_t i = 0; i < kStep; i += kLanes) store(values + i, load(x + i));
  }
  for (int64_t i = 0; i < n; ++i) to[i * kFloatPanel] = values[i];
}

// A few k of all rows of a panel at a time: then the lines that the rows share stay in L1.
template <class T>
void pack_float(const PackedWeight& w, int64_t row, int64_t n_rows, const uint8_t* src,
                int64_t src_bytes, SourceType type) {
  for (int64_t first = 0, last; first < n_rows; first = last) {
    last = min_of(n_rows, first + kFloatPanel - (row + first) % kFloatPanel);
    for (int64_t k = 0; k < w.k; k += kStep) {
      for (int64_t i = first; i < last; ++i) {
        pack_step(src + i * src_bytes, type, k, min_of(kStep, w.k - k),
                  column_of<T>(w, row + i) + k * kFloatPanel);
      }
    }
  }
}

template <class T>
void unpack_float(const PackedWeight& w, int64_t row, float* dst) {
  const T* from = column_of<T>(w, row);
  for (int64_t i = 0; i < w.k; ++i) dst[i] = widen(from[i * kFloatPanel]);
}

}  // namespace

int64_t packed_bytes(WeightKind kind, int32_t group, int32_t has_min, int64_t n, int64_t k) {
  const int64_t columns = panel_columns(kind), panels = (n + columns - 1) / columns;
  if (!is_quantised(kind)) return panels * columns * k * element_bytes(kind);
  const bool whole = group == 32 || group == 64 || group == 128;
  const bool known = kind == WeightKind::q4 ? whole && has_min : whole || (group == 16 && !has_min);
  return known ? panels * QuantLayout(kind, group, has_min, k).panel_bytes : -1;
}

void pack_rows(const PackedWeight& dst, int64_t row0, int64_t n_rows, const void* src,
               SourceType type, int ith, int nth) {
  const BlockType block = block_type(type);
  const int64_t bytes = dst.k / block.values * block.bytes;
  const int64_t first = n_rows * ith / nth, n = n_rows * (ith + 1) / nth - first;
  const uint8_t* rows = static_cast<const uint8_t*>(src) + first * bytes;
  switch (dst.kind) {
    case WeightKind::f32: return pack_float<float>(dst, row0 + first, n, rows, bytes, type);
    case WeightKind::f16: return pack_float<Half>(dst, row0 + first, n, rows, bytes, type);
    case WeightKind::bf16: return pack_float<BFloat>(dst, row0 + first, n, rows, bytes, type);
    default: return pack_quantised(dst, row0 + first, n, rows, bytes, type);
  }
}

void unpack_rows(const PackedWeight& src, int64_t row0, int64_t n_rows, float* dst) {
  for (int64_t i = 0; i < n_rows; ++i, dst += src.k) {
    switch (src.kind) {
      case WeightKind::f32: unpack_float<float>(src, row0 + i, dst); break;
      case WeightKind::f16: unpack_float<Half>(src, row0 + i, dst); break;
      case WeightKind::bf16: unpack_float<BFloat>(src, row0 + i, dst); break;
      default: unpack_quantised(src, row0 + i, dst);
    }
  }
}

}  // namespace VLLM_ISA
}  // namespace vllm
