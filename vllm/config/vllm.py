"""All configs together: the only place where one is checked against another."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec

from vllm.config.cache import CacheConfig
from vllm.config.compilation import CompilationConfig
from vllm.config.device import DeviceConfig
from vllm.config.flags import make_config, option_of
from vllm.config.kernel import AttentionConfig, KernelConfig
from vllm.config.kv_transfer import KVTransferConfig
from vllm.config.lora import LoRAConfig
from vllm.config.memory import MemoryPlan
from vllm.config.model import LoadConfig, ModelConfig, MultiModalConfig
from vllm.config.observability import ObservabilityConfig, ProfilerConfig
from vllm.config.parallel import ParallelConfig
from vllm.config.scheduler import SchedulerConfig
from vllm.config.speculative import SpeculativeConfig
from vllm.config.structured_outputs import StructuredOutputsConfig
from vllm.exceptions import ConfigError


@dataclass(frozen=True)
class VllmConfig:
    """Everything that the engine is told. Resolved once, then never changed."""

    model_config: ModelConfig = field(default_factory=ModelConfig)
    load_config: LoadConfig = field(default_factory=LoadConfig)
    multimodal_config: MultiModalConfig = field(default_factory=MultiModalConfig)
    cache_config: CacheConfig = field(default_factory=CacheConfig)
    parallel_config: ParallelConfig = field(default_factory=ParallelConfig)
    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculative_config: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    lora_config: LoRAConfig = field(default_factory=LoRAConfig)
    attention_config: AttentionConfig = field(default_factory=AttentionConfig)
    compilation_config: CompilationConfig = field(default_factory=CompilationConfig)
    kernel_config: KernelConfig = field(default_factory=KernelConfig)
    structured_outputs_config: StructuredOutputsConfig = field(
        default_factory=StructuredOutputsConfig)
    kv_transfer_config: KVTransferConfig = field(default_factory=KVTransferConfig)
    observability_config: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    profiler_config: ProfilerConfig = field(default_factory=ProfilerConfig)
    device_config: DeviceConfig = field(default_factory=DeviceConfig)
    memory_plan: MemoryPlan | None = None

    def to_json(self) -> bytes:
        """For the engine process; `from_json` is the inverse."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(data: bytes) -> "VllmConfig":
        """The config that `to_json` encoded."""
        return msgspec.json.decode(data, type=VllmConfig)


def config_classes() -> dict[str, type]:
    """Field of VllmConfig -> the config class that declares its flags, in order."""
    return {f.name: f.default_factory for f in fields(VllmConfig)  # type: ignore[misc]
            if isinstance(f.default_factory, type)}


def build(values: Mapping[str, Any]) -> VllmConfig:
    """A VllmConfig from flag values by field name; nothing is resolved yet. Raises ConfigError."""
    return VllmConfig(**{name: make_config(part, values)
                         for name, part in config_classes().items()})


def check(config: VllmConfig) -> None:
    """Cross-checks of values that are each allowed on their own. Raises ConfigError."""
    _check_model(config)
    _check_scheduler(config)
    _check_cache(config)
    backend = config.parallel_config.distributed_executor_backend
    if backend in ("mp", "ray", "external_launcher"):
        raise ConfigError(f"--distributed-executor-backend {backend} is not supported by this "
                          "build yet; one rank runs in the engine process (uni).")
    attention = config.attention_config.attention_backend
    if attention is not None and attention.upper() not in ("AUTO", "CPU_ATTN"):
        raise ConfigError(f"--attention-backend {attention} is not in this build; it has "
                          "CPU_ATTN. Leave the flag out.")
    if not 0 <= config.compilation_config.optimization_level <= 3:
        raise ConfigError(f"--optimization-level is "
                          f"{config.compilation_config.optimization_level}; it must be 0 to 3.")


def _check_model(config: VllmConfig) -> None:
    model = config.model_config
    _at_least("max_logprobs", model.max_logprobs, -1)
    _at_least("renderer_num_workers", model.renderer_num_workers, 1)
    own = "gguf" if model.hf_config.get("_gguf") else model.arch and model.arch.quant_method
    if model.quantization and model.quantization != own:
        raise ConfigError(
            f"--quantization {model.quantization} is not supported by this build yet for this "
            f"model, whose weights are {own or 'not quantized'}; leave the flag out.")


def _check_scheduler(config: VllmConfig) -> None:
    scheduler, asked = config.scheduler_config, config.model_config.max_model_len
    tokens, seqs = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
    if tokens is None or seqs is None:
        raise ConfigError("the configuration was not resolved before it was checked")
    for name, least in _LEAST_SCHEDULER.items():
        _at_least(name, getattr(scheduler, name), least)
    if not 0.0 <= scheduler.watermark < 1.0:
        raise ConfigError(f"--watermark is {scheduler.watermark}; it must be at least 0 and "
                          "below 1.")
    if tokens < seqs:
        raise ConfigError(f"--max-num-batched-tokens ({tokens}) is below --max-num-seqs ({seqs}); "
                          "each running request needs a token per step.")
    if (scheduler.max_num_active_seqs or 0) > seqs:
        raise ConfigError(f"--max-num-active-seqs ({scheduler.max_num_active_seqs}) is above "
                          f"--max-num-seqs ({seqs}).")
    if not isinstance(asked, int):
        return  # "auto": known once memory is planned
    step = min(tokens, scheduler.max_num_scheduled_tokens or tokens)
    if step < asked and not scheduler.enable_chunked_prefill:
        raise ConfigError(
            f"--max-num-batched-tokens ({step}) is below --max-model-len ({asked}): without "
            "chunked prefill a prompt must fit one step. Raise it, lower --max-model-len, or "
            "leave --no-enable-chunked-prefill out.")
    if scheduler.long_prefill_token_threshold > asked:
        raise ConfigError(
            f"--long-prefill-token-threshold ({scheduler.long_prefill_token_threshold}) is above "
            f"--max-model-len ({asked}).")


def _check_cache(config: VllmConfig) -> None:
    cache = config.cache_config
    if cache.block_size < 16 or cache.block_size % 16:
        raise ConfigError(f"--block-size is {cache.block_size}; it must be a multiple of 16.")
    if not 0.0 < cache.gpu_memory_utilization <= 1.0:
        raise ConfigError(f"--gpu-memory-utilization is {cache.gpu_memory_utilization}; it must "
                          "be above 0 and at most 1.")
    _at_least("kv_cache_memory_bytes", cache.kv_cache_memory_bytes, 1)
    _at_least("num_gpu_blocks_override", cache.num_gpu_blocks_override, 2)  # one is reserved


_LEAST_SCHEDULER = {
    "max_num_batched_tokens": 1, "max_num_seqs": 1, "max_num_active_seqs": 1,
    "max_num_scheduled_tokens": 1, "stream_interval": 1, "max_num_queued_reqs": 0,
    "max_num_queued_tokens": 0, "long_prefill_token_threshold": 0,
}  # fmt: skip


def _at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise ConfigError(f"{option_of(name)} is {value}; it must be {least} or more.")
