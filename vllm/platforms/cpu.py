"""The CPU: memory and threads are what the operating system grants this process."""

import platform
from pathlib import Path

from vllm import envs
from vllm.platforms.interface import Platform
from vllm.utils.memory import MemoryLimit, memory_limit
from vllm.utils.threads import compute_cpus

_CPUINFO = Path("/proc/cpuinfo")
# x86 writes "model name"; ARM kernels name the board in "Hardware" at best.
_NAME_KEYS = ("model name", "Hardware", "cpu model")


class CpuPlatform(Platform):
    """Any CPU; which kernels run is decided by cpuid in the native module."""

    device_type = "cpu"
    dtypes = ("float16", "bfloat16", "float32")
    kv_cache_dtypes = ("float16", "bfloat16", "float32")

    def device_name(self) -> str:
        """The processor's name, or the architecture where the system does not tell."""
        return _processor_name(_CPUINFO) or platform.processor() or platform.machine()

    def memory_limit(self) -> MemoryLimit:
        """The tightest of RAM, control group and RLIMIT_AS."""
        return memory_limit()

    def compute_cpus(self) -> tuple[int, tuple[int, ...]]:
        """Affinity mask within the control group's quota, or what the variables say."""
        return compute_cpus(envs.VLLM_CPU_OMP_THREADS_BIND, envs.VLLM_CPU_NUM_OF_RESERVED_CPU)


def _processor_name(cpuinfo: Path) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ""
    rows: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        rows.setdefault(key.strip(), value.strip())
    return next((rows[key] for key in _NAME_KEYS if rows.get(key)), "")
