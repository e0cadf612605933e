"""What the rest asks of a machine: its name, its memory, its threads, its number formats.

Code that depends on the device asks `current_platform.is_cpu()` and its like, never a library.
"""

from abc import ABC, abstractmethod

from vllm.utils.memory import MemoryLimit


class Platform(ABC):
    """One kind of device. `device_type` is the word of `--device`."""

    device_type = ""
    dtypes: tuple[str, ...] = ()
    """Formats of activations and weights, the best first."""
    kv_cache_dtypes: tuple[str, ...] = ()

    @abstractmethod
    def device_name(self) -> str:
        """The name of the device, for people."""

    @abstractmethod
    def memory_limit(self) -> MemoryLimit:
        """Bytes of the device's memory that this process may use, and that are free now."""

    @abstractmethod
    def compute_cpus(self) -> tuple[int, tuple[int, ...]]:
        """(number of compute threads, the CPUs they are pinned to; empty if they are not)."""

    def is_cpu(self) -> bool:
        """True on a CPU."""
        return self.device_type == "cpu"

    def is_cuda(self) -> bool:
        """True on an NVIDIA GPU."""
        return self.device_type == "cuda"

    def is_rocm(self) -> bool:
        """True on an AMD GPU."""
        return self.device_type == "rocm"

    def is_xpu(self) -> bool:
        """True on an Intel GPU."""
        return self.device_type == "xpu"

    def is_tpu(self) -> bool:
        """True on a TPU."""
        return self.device_type == "tpu"

    def is_cuda_alike(self) -> bool:
        """True on an NVIDIA or AMD GPU."""
        return self.is_cuda() or self.is_rocm()

    def is_out_of_tree(self) -> bool:
        """True if a plugin brought this platform."""
        return not type(self).__module__.startswith("vllm.platforms")


class EmptyPlatform(Platform):
    """No device: one thread and one GiB, the same on every machine. For tests and tools."""

    device_type = "empty"
    dtypes = kv_cache_dtypes = ("float16", "bfloat16", "float32")

    def device_name(self) -> str:
        """Nothing."""
        return "empty"

    def memory_limit(self) -> MemoryLimit:
        """One GiB."""
        return MemoryLimit(1 << 30, 1 << 30, "empty platform")

    def compute_cpus(self) -> tuple[int, tuple[int, ...]]:
        """One thread."""
        return 1, ()
