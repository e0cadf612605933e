"""From a configuration to a loaded model: describe, open, build the graph, pack.

Decides the order of loading. Invariant: all refusals happen before weights are packed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from vllm.exceptions import ConfigError
from vllm.ir.graph import Graph
from vllm.ir.passes import optimize
from vllm.ir.values import Form, Part, Weight
from vllm.model_executor.model import Model, StepLimits
from vllm.model_executor.models.decoder import LM_HEAD, build_graph
from vllm.model_executor.models.hf_config import HfConfig
from vllm.model_executor.models.registry import describe
from vllm.model_executor.models.spec import DecoderSpec
from vllm.model_executor.weights.checkpoint import Checkpoint, open_checkpoint
from vllm.model_executor.weights.loader import Loaded, NamedTensors, check_parameters, load
from vllm.model_executor.weights.packing import FloatMatrix, NativeMatrix, Packed, form_chooser
from vllm.v1.messages import KVLayerSpec

if TYPE_CHECKING:
    from vllm.config import VllmConfig

Passes = Callable[[Graph, Callable[[Part], Form]], Graph]
P = TypeVar("P", bound=Packed)


@dataclass(frozen=True)
class ModelOptions:
    """What loading depends on."""

    path: str
    hf_config: Mapping[str, Any]
    dtype: str
    max_model_len: int
    limits: StepLimits
    load_format: str = "auto"
    seed: int = 0
    is_eager: bool = False

    @classmethod
    def of(cls, config: VllmConfig) -> ModelOptions:
        model, scheduler = config.model_config, config.scheduler_config
        max_tokens = _resolved("max_num_batched_tokens", scheduler.max_num_batched_tokens)
        max_seqs = _resolved("max_num_seqs", scheduler.max_num_seqs)
        return cls(
            path=model.path,
            hf_config=model.hf_config,
            dtype=model.dtype,
            max_model_len=_resolved("max_model_len", model.max_model_len),
            limits=StepLimits(max_tokens, max_logits=max_seqs, max_seqs=max_seqs),
            load_format=config.load_config.load_format,
            seed=model.seed,
            is_eager=model.enforce_eager,
        )


def get_model(vllm_config: VllmConfig) -> Model:
    """The model of a configuration, ready for `bind_kv_cache`."""
    return load_native(ModelOptions.of(vllm_config))


def load_native(options: ModelOptions) -> Model:
    """A model run by the native step program."""
    from vllm.model_executor.native.executor import NativeModel

    spec, graph, loaded = _load(options, optimize, NativeMatrix)
    return NativeModel(graph, loaded, kv_layers(spec), options.limits, options.is_eager)


def load_reference(options: ModelOptions, passes: Passes = optimize) -> Model:
    """The same model in numpy, for tests."""
    from vllm.model_executor.reference import ReferenceModel

    spec, graph, loaded = _load(options, passes, FloatMatrix)
    return ReferenceModel(graph, loaded, kv_layers(spec))


def kv_layers(spec: DecoderSpec) -> list[KVLayerSpec]:
    """What each layer keeps per token."""
    return [KVLayerSpec(spec.num_kv_heads, spec.head_dim, layer.window) for layer in spec.layers]


def _resolved(name: str, value: int | str | None) -> int:
    if not isinstance(value, int):
        raise ConfigError(f"{name} is {value}: the configuration was not resolved")
    return value


def _load(
    options: ModelOptions, passes: Passes, new_weight: Callable[[Weight], P]
) -> tuple[DecoderSpec, Graph, Loaded[P]]:
    spec = _describe(options)
    tensors = NamedTensors(_open(options, spec), options.path, spec.renames)
    try:
        if LM_HEAD not in tensors:
            spec = replace(spec, tied=True)
        graph = build_graph(spec, options.max_model_len)
        check_parameters(graph, tensors)
        form_of = form_chooser(tensors.describe, tensors.names(), options.dtype)
        graph = passes(graph, form_of)
        return spec, graph, load(graph, tensors, new_weight)
    finally:
        tensors.close()


def _describe(options: ModelOptions) -> DecoderSpec:
    hf = HfConfig(options.hf_config, options.max_model_len, options.dtype)
    if hf.arch.quant_method is not None:
        raise ConfigError(
            f"{hf.source}: quantization_config.quant_method {hf.arch.quant_method} is not "
            "supported (use an unquantized checkpoint or a GGUF file)"
        )
    return describe(hf)


def _open(options: ModelOptions, spec: DecoderSpec) -> Checkpoint:
    if options.load_format == "dummy":
        from vllm.model_executor.weights.dummy import DummyCheckpoint

        return DummyCheckpoint(build_graph(spec, 1), options.seed, options.dtype)
    return open_checkpoint(options.path, options.load_format)
