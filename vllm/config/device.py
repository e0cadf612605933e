"""The device, and options of platforms that this build does not have."""

from dataclasses import dataclass
from typing import Any

from vllm.config.flags import JSON, flag, later


@dataclass(frozen=True)
class DeviceConfig:
    """Where the model runs."""

    device: str = flag(
        "auto", "device of the model; this build has cpu", choices=("auto", "cpu"),
        feature="another device than the CPU", missing=("cuda", "rocm", "xpu", "tpu"))
    additional_config: dict[str, Any] = later({}, "platform options")
    fail_on_environ_validation: bool = flag(False, "unknown VLLM_* variables are errors")
    watermark_config: dict[str, Any] | None = later(None, "watermarking", kind=JSON)
    diffusion_config: dict[str, Any] | None = later(
        None, "diffusion models", kind=JSON, short=("-dc",))
    engram_config: dict[str, Any] | None = later(None, "engrams", kind=JSON)
    aux_output_config: dict[str, Any] | None = later(None, "auxiliary outputs", kind=JSON)
