"""LoRA adapters."""

from dataclasses import dataclass
from typing import Any

from vllm.config.flags import INT, JSON, STR_LIST, later


@dataclass(frozen=True)
class LoRAConfig:
    """Adapters; limits have no effect until adapters can be enabled."""

    enable_lora: bool = later(False, "LoRA adapters")
    max_loras: int = later(1, "LoRA adapters")
    max_lora_rank: int = later(16, "LoRA adapters")
    max_cpu_loras: int | None = later(None, "LoRA adapters", kind=INT)
    lora_dtype: str = later("auto", "LoRA adapters", choices=("auto", "float16", "bfloat16"))
    lora_extra_vocab_size: int = later(256, "LoRA adapters")
    fully_sharded_loras: bool = later(False, "LoRA adapters")
    lora_target_modules: list[str] | None = later(None, "LoRA adapters", kind=STR_LIST)
    lora_modules: list[str] | None = later(None, "LoRA adapters", kind=STR_LIST)
    default_mm_loras: dict[str, Any] | None = later(None, "LoRA adapters", kind=JSON)
    enable_tower_connector_lora: bool = later(False, "LoRA adapters")
    specialize_active_lora: bool = later(False, "LoRA adapters")
    enable_mixed_moe_lora_format: bool = later(False, "LoRA adapters")
    enable_moe_shared_loras: bool = later(False, "LoRA adapters")
    max_lora_cls_labels: int | None = later(None, "LoRA adapters", kind=INT)
