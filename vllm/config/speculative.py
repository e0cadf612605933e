"""Speculative decoding."""

from dataclasses import dataclass
from typing import Any

from vllm.config.flags import INT, JSON, STR, later


@dataclass(frozen=True)
class SpeculativeConfig:
    """Draft tokens."""

    speculative_config: dict[str, Any] | None = later(
        None, "speculative decoding", kind=JSON, short=("-sc",))
    spec_method: str | None = later(None, "speculative decoding", kind=STR)
    spec_model: str | None = later(None, "speculative decoding", kind=STR)
    spec_tokens: int | None = later(None, "speculative decoding", kind=INT)
