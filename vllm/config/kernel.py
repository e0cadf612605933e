"""Which kernels run."""

from dataclasses import dataclass
from typing import Any

from vllm.config.flags import JSON, STR, flag, later


@dataclass(frozen=True)
class AttentionConfig:
    """The attention backend; `CPU_ATTN` is the one of this build."""

    attention_backend: str | None = flag(
        None, "attention kernels: auto or CPU_ATTN", kind=STR)
    attention_config: dict[str, Any] | None = later(
        None, "another attention option than the backend", kind=JSON, short=("-ac",))


@dataclass(frozen=True)
class KernelConfig:
    """Kernel selection of GPU builds."""

    kernel_config: dict[str, Any] | None = later(None, "kernel selection", kind=JSON)
    moe_backend: str = later("auto", "kernel selection")
    linear_backend: str = later("auto", "kernel selection")
    ir_op_priority: dict[str, Any] | None = later(None, "kernel selection", kind=JSON)
    enable_flashinfer_autotune: bool = later(False, "FlashInfer")
    sparse_indexer_topk_backend: str | None = later(None, "sparse attention", kind=STR)
    gdn_prefill_backend: str | None = later(None, "linear attention", kind=STR)
    kda_prefill_backend: str | None = later(None, "linear attention", kind=STR)
    kda_decode_backend: str | None = later(None, "linear attention", kind=STR)
