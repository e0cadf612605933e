"""From storage types of checkpoints to the packed forms that kernels know.

Decides which form each type gets. Invariant: quantised data is never converted to float on the
way; types with the same form can share one weight, whatever their block layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from vllm.exceptions import ModelFileError
from vllm.ir.values import Floats, Form, Part, Weight
from vllm.model_executor.weights.raw import RawTensor
from vllm.transformers_utils.files import shown

_FLOAT_FORMS = {"f32": Form("f32"), "f16": Form("f16"), "bf16": Form("bf16")}
_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}

# q4_0 is d * (q - 8): a minimum of -8 d. The 5- and 6-bit types are widened to int8.
_BLOCK_FORMS = {
    "q4_0": Form("q4", 32, True),
    "q4_1": Form("q4", 32, True),
    "q4_k": Form("q4", 32, True),
    "q5_0": Form("q8", 32, False),
    "q5_1": Form("q8", 32, True),
    "q5_k": Form("q8", 32, True),
    "q6_k": Form("q8", 16, False),
    "q8_0": Form("q8", 32, False),
}


def form_chooser(
    describe: Callable[[str], tuple[tuple[int, ...], str]], names: Iterable[str], dtype: str
) -> Callable[[Part], Form]:
    """The form of each weight of a checkpoint.

    A float checkpoint is held in `dtype`; in a quantised one, what is still float keeps its type.
    """
    types = {name: describe(name)[1] for name in names}
    is_quantized = any(type_name in _BLOCK_FORMS for type_name in types.values())
    declared = _FLOAT_FORMS[_DTYPES[dtype]]

    def form_of(part: Part) -> Form:
        type_name = types[part.name]
        if type_name in _BLOCK_FORMS:
            return _BLOCK_FORMS[type_name]
        if type_name not in _FLOAT_FORMS:
            raise ModelFileError(
                f"tensor {shown(part.name)} has the type {type_name}, which is not supported "
                f"for weights (supported: {', '.join([*_FLOAT_FORMS, *_BLOCK_FORMS])})"
            )
        return _FLOAT_FORMS[type_name] if is_quantized else declared

    return form_of


class Packed(Protocol):
    """A weight being filled."""

    def fill(self, row0: int, tensor: RawTensor) -> None:
        """Rows from `row0` on."""


class FloatMatrix:
    """The reference packing: dequantised values as [n, k]."""

    def __init__(self, weight: Weight) -> None:
        self.values: Floats = np.empty((weight.n, weight.k), np.float32)

    def fill(self, row0: int, tensor: RawTensor) -> None:
        self.values[row0 : row0 + tensor.shape[0]] = tensor.to_float32()


class NativeMatrix:
    """A weight in the layout of the running ISA; rows are packed straight from the map."""

    def __init__(self, weight: Weight) -> None:
        from vllm.kernels.ops import Weight as PackedWeight

        form = weight.form
        if form is None:
            raise ValueError(f"{weight.name} has no form yet")
        self.packed = PackedWeight(form.kind, form.group, form.has_min, weight.n, weight.k)

    def fill(self, row0: int, tensor: RawTensor) -> None:
        self.packed.pack(row0, tensor.data, tensor.type, tensor.shape[0])
