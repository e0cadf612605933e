"""What the scheduler may do, worked out once from the configuration and the pool."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.exceptions import ConfigError
from vllm.v1.core.kv_cache_groups import max_request_tokens
from vllm.v1.messages import KVCacheConfig

if TYPE_CHECKING:
    from vllm.config import VllmConfig


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of a step and of a request.

    `long_prefill_tokens`: most tokens of one prompt in a step while others want turns, 0 for no
    cap. `watermark_blocks`: blocks kept free when a request is admitted beside others.
    """

    step_tokens: int
    running_requests: int
    request_tokens: int
    is_chunked: bool
    long_prefill_tokens: int
    watermark_blocks: int

    @classmethod
    def from_config(cls, vllm_config: "VllmConfig", kv_cache_config: KVCacheConfig) -> "Limits":
        """The limits of a resolved configuration."""
        config = vllm_config.scheduler_config
        step_tokens = _resolved("max_num_batched_tokens", config.max_num_batched_tokens)
        step_tokens = min(step_tokens, config.max_num_scheduled_tokens or step_tokens)
        running = _resolved("max_num_seqs", config.max_num_seqs)
        request_tokens = min(
            _resolved("max_model_len", vllm_config.model_config.max_model_len),
            max_request_tokens(kv_cache_config, step_tokens),
        )
        if not config.enable_chunked_prefill:  # also after a preemption all must fit one step
            request_tokens = min(request_tokens, step_tokens)
        return cls(
            step_tokens=step_tokens,
            running_requests=min(running, config.max_num_active_seqs or running),
            request_tokens=request_tokens,
            is_chunked=config.enable_chunked_prefill,
            long_prefill_tokens=config.long_prefill_token_threshold,
            watermark_blocks=int(config.watermark * kv_cache_config.num_blocks),
        )


def _resolved(name: str, value: int | str | None) -> int:
    if not isinstance(value, int):
        raise ConfigError(f"{name} is {value}: the configuration was not resolved.")
    return value
