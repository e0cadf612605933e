"""Compilation: the native program needs none, so every level gives the same program."""

from dataclasses import dataclass
from typing import Any

from vllm.config.flags import INT, INT_LIST, JSON, flag, later


@dataclass(frozen=True)
class CompilationConfig:
    """Kept so that command lines of GPU deployments start; there is nothing to compile on a CPU."""

    optimization_level: int = flag(
        2, "0 to 3; there is no compile step on CPU, so the levels do not differ",
        short=("-O",))
    compilation_config: dict[str, Any] = later(
        {}, "torch compilation", kind=JSON, short=("-cc",))
    cudagraph_capture_sizes: list[int] | None = later(None, "CUDA graphs", kind=INT_LIST)
    max_cudagraph_capture_size: int | None = later(None, "CUDA graphs", kind=INT)
