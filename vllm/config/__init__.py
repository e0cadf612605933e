"""The configuration: one frozen dataclass per topic, `VllmConfig` holds them all."""

from vllm.config.cache import CacheConfig
from vllm.config.compilation import CompilationConfig
from vllm.config.device import DeviceConfig
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
from vllm.config.vllm import VllmConfig

__all__ = [
    "AttentionConfig",
    "CacheConfig",
    "CompilationConfig",
    "DeviceConfig",
    "KVTransferConfig",
    "KernelConfig",
    "LoRAConfig",
    "LoadConfig",
    "MemoryPlan",
    "ModelConfig",
    "MultiModalConfig",
    "ObservabilityConfig",
    "ParallelConfig",
    "ProfilerConfig",
    "SchedulerConfig",
    "SpeculativeConfig",
    "StructuredOutputsConfig",
    "VllmConfig",
]
