"""Which attention backend serves a model. One table; an unfit choice is refused at start-up."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from vllm.attention.backend import AttentionBackend
from vllm.exceptions import ConfigError
from vllm.v1.messages import KVLayerSpec

BACKENDS = {
    "native": "vllm.attention.backends.native",
    "reference": "vllm.attention.backends.reference",
}


def select_backend(
    name: str, layers: Iterable[KVLayerSpec], kv_dtype: str, block_size: int
) -> AttentionBackend:
    """The backend called `name`, checked against every layer."""
    if name not in BACKENDS:
        raise ConfigError(f"attention backend {name} is unknown (known: {', '.join(BACKENDS)})")
    backend: AttentionBackend = import_module(BACKENDS[name]).BACKEND
    if kv_dtype not in backend.kv_kinds:
        raise ConfigError(
            f"--kv-cache-dtype {kv_dtype} is not supported by the {name} attention backend "
            f"(supported: {', '.join(backend.kv_kinds)})"
        )
    for layer in dict.fromkeys(layers):
        problem = backend.problem(layer, block_size)
        if problem is not None:
            raise ConfigError(f"the {name} attention backend can't serve this model: {problem}")
    return backend
