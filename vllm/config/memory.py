"""How the memory of the machine is divided; the arithmetic that is shown at start-up."""

from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes, and the blocks that come out of them."""

    total: int
    """What this process may use at all: the smallest of RAM, cgroup and RLIMIT_AS."""
    total_source: str
    available: int
    """What is free now."""
    weights: int
    activations: int
    headroom: int
    kv_cache: int
    kv_origin: str
    """What decided the size of the KV cache."""
    page: int
    """Bytes of one block."""
    num_blocks: int
    num_tokens: int
    """Tokens that the cache holds for sequences of max_model_len."""
    max_concurrency: float
    """How many sequences of max_model_len fit at once."""

    def lines(self, max_model_len: int) -> list[str]:
        """The plan in the words that users of vLLM look for."""
        return [
            f"Memory: {gib(self.available)} of {gib(self.total)} GiB free ({self.total_source}); "
            f"weights {gib(self.weights)}, activations {gib(self.activations)}, "
            f"headroom {gib(self.headroom)} GiB",
            f"Available KV cache memory: {gib(self.kv_cache)} GiB (from {self.kv_origin}), "
            f"{self.num_blocks} blocks of {self.page / 1024:.0f} KiB, touched as they are used",
            f"CPU KV cache size: {self.num_tokens:,} tokens, Maximum concurrency for "
            f"{max_model_len:,} tokens per request: {self.max_concurrency:.2f}x",
        ]


def gib(num_bytes: float) -> str:
    """Bytes as GiB with two digits."""
    return f"{num_bytes / GIB:.2f}"
