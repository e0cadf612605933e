"""All configs together: the only place where one is checked against another."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import msgspec

from vllm.config.cache import CacheConfig
from vllm.config.compilation import CompilationConfig
from vllm.config.device import DeviceConfig
from vllm.config.flags import flags_of
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


def build(values: dict[str, Any]) -> VllmConfig:
    """A VllmConfig from flag values by field name; nothing is resolved or checked yet."""
    parts = {}
    for name, config in config_classes().items():
        given = {key: values[key] for key in flags_of(config) if key in values}
        parts[name] = config(**given)
    return VllmConfig(**parts)


def check_supported(config: VllmConfig) -> None:
    """Refuse every value that asks for a feature this build does not have."""
    for name in config_classes():
        part = getattr(config, name)
        defaults = type(part)()
        for key, spec in flags_of(type(part)).items():
            value = getattr(part, key)
            if spec.missing and value != getattr(defaults, key):
                raise ConfigError(
                    f"--{key.replace('_', '-')}: {spec.missing} is not supported by this build "
                    f"yet; leave the flag out.")


def check(config: VllmConfig) -> None:
    """Cross-checks of values that are each allowed on their own. Raises ConfigError."""
    _check_model(config)
    _check_scheduler(config)
    _check_cache(config)
    backend = config.parallel_config.distributed_executor_backend
    if backend not in (None, "uni"):
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
    if model.runner not in ("auto", "generate"):
        raise ConfigError(f"--runner {model.runner} is not supported by this build yet; "
                          "it runs generative models.")
    if model.task not in (None, "auto", "generate"):
        raise ConfigError(f"--task {model.task} is not supported by this build yet; "
                          "it runs generative models.")
    if model.model_impl not in ("auto", "vllm"):
        raise ConfigError(f"--model-impl {model.model_impl} is not supported by this build yet; "
                          "leave the flag out.")
    if model.max_logprobs < -1:
        raise ConfigError(f"--max-logprobs is {model.max_logprobs}; it must be -1 or more.")
    if model.renderer_num_workers < 1:
        raise ConfigError(f"--renderer-num-workers is {model.renderer_num_workers}; "
                          "it must be 1 or more.")


def _check_scheduler(config: VllmConfig) -> None:
    scheduler, asked = config.scheduler_config, config.model_config.max_model_len
    tokens, seqs = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
    if tokens is None or seqs is None:
        raise ConfigError("the configuration was not resolved before it was checked")
    length = asked if isinstance(asked, int) else 1   # "auto": not known before memory is planned
    for name in ("max_num_batched_tokens", "max_num_seqs", "stream_interval"):
        if getattr(scheduler, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(scheduler, name)}; "
                              "it must be 1 or more.")
    if not 0.0 <= scheduler.watermark < 1.0:
        raise ConfigError(f"--watermark is {scheduler.watermark}; it must be at least 0 and "
                          "below 1.")
    if tokens < length and not scheduler.enable_chunked_prefill:
        raise ConfigError(
            f"--max-num-batched-tokens ({tokens}) is below --max-model-len ({length}): without "
            "chunked prefill a prompt must fit one step. Raise it, lower --max-model-len, or "
            "leave --no-enable-chunked-prefill out.")
    if tokens < seqs:
        raise ConfigError(f"--max-num-batched-tokens ({tokens}) is below --max-num-seqs ({seqs}); "
                          "each running request needs a token per step.")
    if scheduler.long_prefill_token_threshold > length > 1:
        raise ConfigError(
            f"--long-prefill-token-threshold ({scheduler.long_prefill_token_threshold}) is above "
            f"--max-model-len ({length}).")
    if (scheduler.max_num_active_seqs or 0) > seqs:
        raise ConfigError(f"--max-num-active-seqs ({scheduler.max_num_active_seqs}) is above "
                          f"--max-num-seqs ({seqs}).")


def _check_cache(config: VllmConfig) -> None:
    cache = config.cache_config
    if cache.block_size < 16 or cache.block_size % 16:
        raise ConfigError(f"--block-size is {cache.block_size}; it must be a multiple of 16.")
    if not 0.0 < cache.gpu_memory_utilization <= 1.0:
        raise ConfigError(f"--gpu-memory-utilization is {cache.gpu_memory_utilization}; it must "
                          "be above 0 and at most 1.")
    if cache.num_gpu_blocks_override is not None and cache.num_gpu_blocks_override < 2:
        raise ConfigError(f"--num-gpu-blocks-override is {cache.num_gpu_blocks_override}; it must "
                          "be 2 or more (one block is reserved).")


__all__ = ["VllmConfig", "build", "check", "check_supported", "config_classes", "replace"]
