"""One tensor as it lies in a checkpoint: raw bytes plus the name of their storage type.

Invariant: `data` holds exactly the bytes of `shape` in `type`, rows one after the other; it may be
a view on a read-only memory map and must not be written to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vllm.exceptions import ModelFileError
from vllm.model_executor.weights.gguf_blocks import DEQUANTIZE
from vllm.transformers_utils.files import shown

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class RawTensor:
    """`type` is "f32", "f16", "bf16", a GGUF block type such as "q4_1", or another stored type."""

    name: str
    shape: tuple[int, ...]
    type: str
    data: Bytes

    @property
    def rows(self) -> Bytes:
        """The bytes as [rows, bytes per row], a row being the last dimension."""
        num_rows = 1
        for dim in self.shape[:-1]:
            num_rows *= dim
        return self.data.reshape(num_rows, -1)

    def to_float32(self) -> Floats:
        """The values in f32: exact for float types, the reference dequantization for blocks."""
        dequantize = DEQUANTIZE.get(self.type)
        if dequantize is None:
            raise ModelFileError(
                f"tensor {shown(self.name)} has the type {self.type}, which can't be read as a "
                f"float (supported: {', '.join(DEQUANTIZE)})"
            )
        return dequantize(np.ascontiguousarray(self.data)).reshape(self.shape)
