"""`Model`: what the worker needs of a loaded model, whatever executes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from vllm.attention.backend import StepInput
from vllm.ir.values import Floats
from vllm.v1.messages import KVCacheConfig, KVLayerSpec

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class StepLimits:
    """The largest step that buffers are made for."""

    max_tokens: int
    max_logits: int
    max_seqs: int


class Model(Protocol):
    """A loaded model. Call `bind_kv_cache` once before the first step."""

    kv_layers: list[KVLayerSpec]
    vocab_size: int

    def bind_kv_cache(self, config: KVCacheConfig, kv_dtype: str) -> None:
        """Give the attention layers their cache (memory is touched when it is used)."""

    def execute(self, batch: StepInput) -> Floats:
        """Logits [R, vocab_size] of the sampled rows, valid until the next call."""

    def logits_rows(self, indices: Ints) -> Floats:
        """Logits of other rows of the last step; at most `max_logits` of them."""

    def limit_tokens(self, num_tokens: int) -> None:
        """Give ids from `num_tokens` on (padding of the head) the logit -inf."""

    def stats(self) -> dict[str, Any]:
        """Sizes in bytes of weights and buffers."""


def mask_padding(logits: Floats, num_tokens: int | None) -> Floats:
    """Ids that no tokenizer knows can't be sampled."""
    if num_tokens is not None:
        logits[:, num_tokens:] = -np.inf
    return logits
