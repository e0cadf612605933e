// Checkpoint rows to packed weights and back. Block layouts: the GGUF specification.
//
// A row is read group by group: 32 values as integers with a scale and a minimum (two scales for the
// types whose groups are 16), and written to the place that packed.h gives them. Float sources are
// quantised to the nearest value. The rows of a call are divided over the threads.
#include "dot.h"
#include "isa.h"
#include "packed.h"

namespace vllm {
namespace VLLM_ISA {
namespace {

// 32 consecutive values: w = scale[i / 16] * q[i] + min.
struct Group {
  float scale[2];
  float min;
  int16_t q[32];
  void set(float s, float m) { scale[0] = scale[1] = s, min = m; }
};

VLLM_INLINE float half_at(const uint8_t* p) { return half_to_float(load_as<uint16_t>(p)); }

// ---- block types ------------------------------------------------------------------------------
// Each reads group g of a row.

void read_nibbles(const uint8_t* p, int16_t* q) {
  for (int i = 0; i < 16; ++i) q[i] = p[i] & 15, q[i + 16] = p[i] >> 4;
}

void add_fifth_bits(const uint8_t* p, int16_t* q) {
  const uint32_t high = load_as<uint32_t>(p);
  for (int i = 0; i < 32; ++i) q[i] = static_cast<int16_t>(q[i] | ((high >> i) & 1) << 4);
}

void read_q4_0(const uint8_t* row, int64_t g, Group& out) {      // d | 16 bytes
  const uint8_t* p = row + g * 18;
  const float d = half_at(p);
  out.set(d, -8.0f * d);
  read_nibbles(p + 2, out.q);
}

void read_q4_1(const uint8_t* row, int64_t g, Group& out) {      // d | m | 16 bytes
  const uint8_t* p = row + g * 20;
  out.set(half_at(p), half_at(p + 2));
  read_nibbles(p + 4, out.q);
}

void read_q5_0(const uint8_t* row, int64_t g, Group& out) {      // d | 32 bits | 16 bytes
  const uint8_t* p = row + g * 22;
  out.set(half_at(p), 0.0f);
  read_nibbles(p + 6, out.q);
  add_fifth_bits(p + 2, out.q);
  for (int16_t& q : out.q) q = static_cast<int16_t>(q - 16);
}

void read_q5_1(const uint8_t* row, int64_t g, Group& out) {      // d | m | 32 bits | 16 bytes
  const uint8_t* p = row + g * 24;
  out.set(half_at(p), half_at(p + 2));
  read_nibbles(p + 8, out.q);
  add_fifth_bits(p + 4, out.q);
}

void read_q8_0(const uint8_t* row, int64_t g, Group& out) {      // d | 32 int8
  const uint8_t* p = row + g * 34;
  out.set(half_at(p), 0.0f);
  for (int i = 0; i < 32; ++i) out.q[i] = static_cast<int8_t>(p[2 + i]);
}

// 6-bit scale and minimum of sub-block j of 8, packed in 12 bytes.
void scale_and_min(const uint8_t* p, int j, int& scale, int& min) {
  if (j < 4) {
    scale = p[j] & 63, min = p[j + 4] & 63;
  } else {
    scale = (p[j + 4] & 15) | (p[j - 4] >> 6) << 4;
    min = p[j + 4] >> 4 | (p[j] >> 6) << 4;
  }
}

// Blocks of 256: d | dmin | 12 bytes of scales | ...; sub-blocks 2i and 2i+1 share 32 bytes.
void read_k_header(const uint8_t* p, int j, Group& out) {
  int scale, min;
  scale_and_min(p + 4, j, scale, min);
  out.set(half_at(p) * static_cast<float>(scale), -half_at(p + 2) * static_cast<float>(min));
}

void read_q4_k(const uint8_t* row, int64_t g, Group& out) {
  const uint8_t* p = row + g / 8 * 144;
  const int j = static_cast<int>(g % 8);
  read_k_header(p, j, out);
  const uint8_t* values = p + 16 + j / 2 * 32;
  for (int i = 0; i < 32; ++i) out.q[i] = (values[i] >> (j % 2 * 4)) & 15;
}

void read_q5_k(const uint8_t* row, int64_t g, Group& out) {      // ... | 32 bytes of fifth bits | 128
  const uint8_t* p = row + g / 8 * 176;
  const int j = static_cast<int>(g % 8);
  read_k_header(p, j, out);
  const uint8_t *high = p + 16, *values = p + 48 + j / 2 * 32;
  for (int i = 0; i < 32; ++i) {
    out.q[i] = static_cast<int16_t>(((values[i] >> (j % 2 * 4)) & 15) | ((high[i] >> j) & 1) << 4);
  }
}

// low nibbles 128 | high pairs of bits 64 | 16 int8 scales | d; halves of 128 values, in which the
// four groups of 32 take nibble g/2 of bytes (g%2)*32 and the pair g of the high bits.
void read_q6_k(const uint8_t* row, int64_t group, Group& out) {
  const uint8_t* p = row + group / 8 * 210;
  const int half = static_cast<int>(group % 8) / 4, g = static_cast<int>(group % 4);
  const uint8_t* low = p + half * 64 + g % 2 * 32;
  const uint8_t* high = p + 128 + half * 32;
  const int8_t* scales = reinterpret_cast<const int8_t*>(p + 192) + half * 8 + g * 2;
  const float d = half_at(p + 208);
  out.scale[0] = d * static_cast<float>(scales[0]);
  out.scale[1] = d * static_cast<float>(scales[1]);
  out.min = 0.0f;
  for (int i = 0; i < 32; ++i) {
    const int q = ((low[i] >> (g / 2 * 4)) & 15) | ((high[i] >> (g * 2)) & 3) << 4;
    out.q[i] = static_cast<int16_t>(q - 32);
  }
}

// ---- float sources ----------------------------------------------------------------------------

VLLM_INLINE float float_at(const uint8_t* row, SourceType type, int64_t i) {
  if (type == SourceType::f32) return load_as<float>(row + 4 * i);
  const uint16_t bits16 = load_as<uint16_t>(row + 2 * i);
  return type == SourceType::f16 ? half_to_float(bits16) : widen(BFloat{bits16});
}

VLLM_INLINE float round_scale(float x, int64_t scale_bytes) {
  return scale_bytes == 2 ? half_to_float(float_to_half(x)) : x;
}

int16_t nearest(float x, int low, int high) {
  const float clipped = x < static_cast<float>(low) ? static_cast<float>(low)
                      : x > static_cast<float>(high) ? static_cast<float>(high) : x;
  return static_cast<int16_t>(__builtin_rintf(clipped));
}

// Values [begin, end) of a group to integers in [low, high], by the scale that spans their range.
void quantise(const float* x, int begin, int end, bool has_min, int levels, int64_t scale_bytes,
              Group& out) {
  float low = 0.0f, high = 0.0f;
  for (int i = begin; i < end; ++i) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  const float span = has_min ? high - low : (high > -low ? high : -low);
  const float steps = static_cast<float>(has_min ? levels - 1 : levels / 2 - 1);
  const float scale = round_scale(span / steps, scale_bytes);
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  out.scale[begin / 16] = scale;
  if (end - begin == 32) out.scale[1] = scale;
  out.min = has_min ? round_scale(low, scale_bytes) : 0.0f;
  const int first = has_min ? 0 : -levels / 2 + 1;
  for (int i = begin; i < end; ++i) {
    out.q[i] = nearest((x[i] - out.min) * inverse, first, first + (has_min ? levels - 1 : levels - 2));
  }
}

void read_float(const PackedWeight& w, const uint8_t* row, SourceType type, int64_t g, Group& out) {
  const QuantLayout layout(w);
  float x[32] = {};
  const int64_t n = w.k - g * 32 < 32 ? w.k - g * 32 : 32;
  for (int64_t i = 0; i < n; ++i) x[i] = float_at(row, type, g * 32 + i);
  const int levels = w.kind == WeightKind::q4 ? 16 : 256;
  for (int begin = 0; begin < 32; begin += w.group) {
    quantise(x, begin, begin + w.group, w.has_min, levels, layout.scale_bytes, out);
  }
}

void read_group(const PackedWeight& w, const uint8_t* row, SourceType type, int64_t g, Group& out) {
  switch (type) {
    case SourceType::q4_0: return read_q4_0(row, g, out);
    case SourceType::q4_1: return read_q4_1(row, g, out);
    case SourceType::q5_0: return read_q5_0(row, g, out);
    case SourceType::q5_1: return read_q5_1(row, g, out);
    case SourceType::q8_0: return read_q8_0(row, g, out);
    case SourceType::q4_k: return read_q4_k(row, g, out);
    case SourceType::q5_k: return read_q5_k(row, g, out);
    case SourceType::q6_k: return read_q6_k(row, g, out);
    default: return read_float(w, row, type, g, out);
  }
}

// Bytes of one source row of k values.
int64_t row_bytes(SourceType type, int64_t k) {
  switch (type) {
    case SourceType::f32: return 4 * k;
    case SourceType::f16:
    case SourceType::bf16: return 2 * k;
    case SourceType::q4_0: return k / 32 * 18;
    case SourceType::q4_1: return k / 32 * 20;
    case SourceType::q5_0: return k / 32 * 22;
    case SourceType::q5_1: return k / 32 * 24;
    case SourceType::q8_0: return k / 32 * 34;
    case SourceType::q4_k: return k / 256 * 144;
    case SourceType::q5_k: return k / 256 * 176;
    case SourceType::q6_k: return k / 256 * 210;
  }
  return 0;
}

// ---- places in a packed weight ----------------------------------------------------------------

void put_scale(uint8_t* p, int64_t bytes, float x) {
  if (bytes == 4) return static_cast<void>(__builtin_memcpy(p, &x, 4));
  const uint16_t h = float_to_half(x);
  __builtin_memcpy(p, &h, 2);
}

float get_scale(const uint8_t* p, int64_t bytes) {
  return bytes == 4 ? load_as<float>(p) : half_at(p);
}

// The bytes of lane `lane` in the group that holds value `g32 * 32`.
uint8_t* group_at(const PackedWeight& w, const QuantLayout& layout, int64_t row, int64_t group) {
  uint8_t* data = static_cast<uint8_t*>(const_cast<void*>(w.data));
  return data + row / kLanes * layout.panel_bytes + group * layout.group_bytes;
}

void put_group(const PackedWeight& w, const QuantLayout& layout, int64_t row, int64_t g,
               const Group& in) {
  const int64_t lane = row % kLanes, per32 = 32 / w.group;
  for (int64_t part = 0; part < per32; ++part) {
    uint8_t* p = group_at(w, layout, row, g * per32 + part);
    put_scale(p + lane * layout.scale_bytes, layout.scale_bytes, in.scale[part]);
    if (w.has_min) put_scale(p + layout.mins + lane * layout.scale_bytes, layout.scale_bytes, in.min);
    uint8_t* values = p + layout.values + lane * 4;
    const int16_t* q = in.q + part * w.group;
    if (w.kind == WeightKind::q4) {
      for (int i = 0; i < 16; ++i) {
        values[i / 4 * 4 * kLanes + i % 4] = static_cast<uint8_t>(q[i] | q[i + 16] << 4);
      }
    } else {
      for (int i = 0; i < w.group; ++i) {
        values[i / 4 * 4 * kLanes + i % 4] = static_cast<uint8_t>(q[i]) ^ kByteBias;
      }
    }
  }
}

void get_group(const PackedWeight& w, const QuantLayout& layout, int64_t row, int64_t g,
               Group& out) {
  const int64_t lane = row % kLanes, per32 = 32 / w.group;
  out.min = 0.0f;
  for (int64_t part = 0; part < per32; ++part) {
    const uint8_t* p = group_at(w, layout, row, g * per32 + part);
    out.scale[part] = get_scale(p + lane * layout.scale_bytes, layout.scale_bytes);
    if (w.has_min) out.min = get_scale(p + layout.mins + lane * layout.scale_bytes, layout.scale_bytes);
    const uint8_t* values = p + layout.values + lane * 4;
    int16_t* q = out.q + part * w.group;
    if (w.kind == WeightKind::q4) {
      for (int i = 0; i < 16; ++i) {
        const uint8_t both = values[i / 4 * 4 * kLanes + i % 4];
        q[i] = both & 15, q[i + 16] = both >> 4;
      }
    } else {
      for (int i = 0; i < w.group; ++i) {
        q[i] = static_cast<int8_t>(values[i / 4 * 4 * kLanes + i % 4] ^ kByteBias);
      }
    }
  }
  if (per32 == 1) out.scale[1] = out.scale[0];
}

// ---- rows -------------------------------------------------------------------------------------

void pack_quant_row(const PackedWeight& w, int64_t row, const uint8_t* src, SourceType type) {
  const QuantLayout layout(w);
  Group group;
  for (int64_t g = 0; g < q8_padded(w.k) / 32; ++g) {
    read_group(w, src, type, g, group);
    put_group(w, layout, row, g, group);
  }
}

void put_float(const PackedWeight& w, int64_t row, int64_t i, float x) {
  uint8_t* data = static_cast<uint8_t*>(const_cast<void*>(w.data));
  const int64_t panel = 2 * kLanes;
  const int64_t at = row / panel * w.k * panel + i * panel + row % panel;
  if (w.kind == WeightKind::f32) return static_cast<void>(__builtin_memcpy(data + 4 * at, &x, 4));
  uint16_t h;
  if (w.kind == WeightKind::f16) {
    h = float_to_half(x);
  } else {
    uint32_t b;
    __builtin_memcpy(&b, &x, 4);
    h = static_cast<uint16_t>(x == x ? (b + 0x7fff + ((b >> 16) & 1)) >> 16 : b >> 16 | 0x40);
  }
  __builtin_memcpy(data + 2 * at, &h, 2);
}

template <class Bits>
void copy_float_row(const PackedWeight& w, int64_t row, const uint8_t* src) {
  const int64_t panel = 2 * kLanes;
  uint8_t* to = static_cast<uint8_t*>(const_cast<void*>(w.data)) +
                (row / panel * w.k * panel + row % panel) * static_cast<int64_t>(sizeof(Bits));
  for (int64_t i = 0; i < w.k; ++i) {
    __builtin_memcpy(to + i * panel * sizeof(Bits), src + i * sizeof(Bits), sizeof(Bits));
  }
}

void pack_float_row(const PackedWeight& w, int64_t row, const uint8_t* src, SourceType type) {
  const bool same = static_cast<int>(type) == static_cast<int>(w.kind);   // f32, f16, bf16
  if (same && type == SourceType::f32) return copy_float_row<uint32_t>(w, row, src);
  if (same) return copy_float_row<uint16_t>(w, row, src);
  if (type <= SourceType::bf16) {
    for (int64_t i = 0; i < w.k; ++i) put_float(w, row, i, float_at(src, type, i));
    return;
  }
  Group group;
  for (int64_t i = 0; i < w.k; ++i) {
    if (i % 32 == 0) read_group(w, src, type, i / 32, group);
    put_float(w, row, i, group.scale[i % 32 / 16] * group.q[i % 32] + group.min);
  }
}

void unpack_quant_row(const PackedWeight& w, int64_t row, float* dst) {
  const QuantLayout layout(w);
  Group group;
  for (int64_t i = 0; i < w.k; ++i) {
    if (i % 32 == 0) get_group(w, layout, row, i / 32, group);
    dst[i] = group.scale[i % 32 / 16] * static_cast<float>(group.q[i % 32]) + group.min;
  }
}

template <class T>
void unpack_float_row(const PackedWeight& w, int64_t row, float* dst) {
  const int64_t panel = 2 * kLanes;
  const T* from = static_cast<const T*>(w.data) + row / panel * w.k * panel + row % panel;
  for (int64_t i = 0; i < w.k; ++i) dst[i] = widen(from[i * panel]);
}

}  // namespace

int64_t packed_bytes(WeightKind kind, int32_t group, int32_t has_min, int64_t n, int64_t k) {
  const int64_t columns = panel_columns(kind), panels = (n + columns - 1) / columns;
  if (!is_quantised(kind)) return panels * columns * k * element_bytes(kind);
  const bool known = group == 32 || (group == 16 && kind == WeightKind::q8 && !has_min);
  return known ? panels * QuantLayout(kind, group, has_min, k).panel_bytes : -1;
}

void pack_rows(const PackedWeight& dst, int64_t row0, int64_t n_rows, const void* src,
               SourceType type, int ith, int nth) {
  const uint8_t* rows = static_cast<const uint8_t*>(src);
  const int64_t bytes = row_bytes(type, dst.k);
  for (int64_t i = n_rows * ith / nth; i < n_rows * (ith + 1) / nth; ++i) {
    const uint8_t* row = rows + i * bytes;
    if (is_quantised(dst.kind)) pack_quant_row(dst, row0 + i, row, type);
    else pack_float_row(dst, row0 + i, row, type);
  }
}

void unpack_rows(const PackedWeight& src, int64_t row0, int64_t n_rows, float* dst) {
  for (int64_t i = 0; i < n_rows; ++i, dst += src.k) {
    switch (src.kind) {
      case WeightKind::f32: unpack_float_row<float>(src, row0 + i, dst); break;
      case WeightKind::f16: unpack_float_row<Half>(src, row0 + i, dst); break;
      case WeightKind::bf16: unpack_float_row<BFloat>(src, row0 + i, dst); break;
      default: unpack_quant_row(src, row0 + i, dst);
    }
  }
}

}  // namespace VLLM_ISA
}  // namespace vllm
