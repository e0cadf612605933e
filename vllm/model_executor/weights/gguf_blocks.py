"""What the bytes of each storage type mean, as plain numpy: the oracle for packing and kernels.

Invariant: each function maps the bytes of whole blocks to f32 values, in order, with the same
arithmetic (f16 scales widened to f32, products and sums in f32) as the format defines.

    type  block  bytes  layout (d, m: f16; value of quant q)
    q4_0     32     18  d | 16 x two nibbles            d * (q - 8)
    q4_1     32     20  d m | 16 x two nibbles          d * q + m
    q5_0     32     22  d | u32 high bits | nibbles     d * (q - 16)
    q5_1     32     24  d m | u32 high bits | nibbles   d * q + m
    q8_0     32     34  d | 32 x i8                     d * q
    q4_k    256    144  d dm | 12 packed 6-bit scales and mins of 8 groups | 128 nibbles
    q5_k    256    176  d dm | 12 as above | 32 high bits | 128 nibbles
    q6_k    256    210  128 low nibbles | 64 high pairs | 16 x i8 scales | d

In the 32-blocks the low nibbles are values 0-15 and the high nibbles 16-31. In q4_k and q5_k each
32 bytes hold two groups of 32: low nibbles, then high nibbles; value = d * scale * q - dm * min.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.integer[Any]]


def f32(data: Bytes) -> Floats:
    values: Floats = data.view(np.float32)
    return values


def f16(data: Bytes) -> Floats:
    return _as_f32(data.view(np.float16))


def bf16(data: Bytes) -> Floats:
    return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def f64(data: Bytes) -> Floats:
    return _as_f32(data.view(np.float64))


def q4_0(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 18)
    return _half(blocks, 0) * _minus(_nibbles(blocks[:, 2:]), 8)


def q4_1(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 20)
    return _half(blocks, 0) * _as_f32(_nibbles(blocks[:, 4:])) + _half(blocks, 2)


def q5_0(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 22)
    quants = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return _half(blocks, 0) * _minus(quants, 16)


def q5_1(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 24)
    quants = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return _half(blocks, 0) * _as_f32(quants) + _half(blocks, 2)


def q8_0(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 34)
    return _half(blocks, 0) * _as_f32(blocks[:, 2:].view(np.int8))


def q4_k(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 144)
    return _affine_groups(blocks, _paired_groups(blocks[:, 16:]))


def q5_k(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 176)
    # Bit g of high byte i is the fifth bit of value i of group g.
    high = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _affine_groups(blocks, _paired_groups(blocks[:, 48:]) | high << 4)


def q6_k(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 210)
    # Each half (128 values) has 64 bytes of low nibbles and 32 bytes of high pairs:
    # group j of 32 takes nibble j // 2 of byte 32 * (j % 2) + i, and bit pair j of high byte i.
    low = blocks[:, :128].reshape(-1, 2, 1, 2, 32) >> _column([0, 4], 2) & 15
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> _column([0, 2, 4, 6], 1) & 3
    quants = low.reshape(-1, 2, 4, 32) | high << 4
    signed = _minus(quants.reshape(-1, 16, 16), 32)
    scales = _as_f32(blocks[:, 192:208].view(np.int8))
    return ((_half(blocks, 208) * scales)[:, :, None] * signed).reshape(-1, 256)


def _as_f32(values: npt.NDArray[Any]) -> Floats:
    return values.astype(np.float32)


def _minus(quants: Ints, zero_point: int) -> Floats:
    values: Floats = _as_f32(quants) - np.float32(zero_point)
    return values


def _half(blocks: Bytes, start: int) -> Floats:
    """The f16 at byte `start` of each block, as a column."""
    return _as_f32(np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16))


def _nibbles(packed: Bytes) -> Ints:
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(packed: Bytes) -> Ints:
    """32 bits per block, each moved to the value 16."""
    return np.unpackbits(packed, axis=1, bitorder="little") << 4


def _column(shifts: list[int], trailing: int) -> Ints:
    return np.array(shifts, np.uint8).reshape(-1, *[1] * trailing)


def _paired_groups(packed: Bytes) -> Ints:
    """[blocks, 128] bytes -> [blocks, 8 groups, 32]: low nibbles of 32 bytes, then high ones."""
    pairs = packed.reshape(-1, 4, 1, 32) >> _column([0, 4], 1) & 15
    return pairs.reshape(-1, 8, 32)


def _affine_groups(blocks: Bytes, quants: Ints) -> Floats:
    """d * scale * q - dm * min for the 8 groups of 32 of each block."""
    scales, mins = _six_bit_scales(blocks[:, 4:16])
    step = _half(blocks, 0) * _as_f32(scales)
    floor = _half(blocks, 2) * _as_f32(mins)
    values = step[:, :, None] * _as_f32(quants) - floor[:, :, None]
    return values.reshape(-1, 256)


def _six_bit_scales(packed: Bytes) -> tuple[Ints, Ints]:
    """12 bytes -> 8 scales and 8 mins of 6 bits.

    Bytes 0-3 hold scales 0-3 and bytes 4-7 mins 0-3 in their low six bits; the upper two bits are
    the top of scales and mins 4-7, whose low four bits are the nibbles of bytes 8-11.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    mins = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return scales, mins


DEQUANTIZE: dict[str, Callable[[Bytes], Floats]] = {
    function.__name__: function
    for function in (f32, f16, bf16, f64, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k)
}
