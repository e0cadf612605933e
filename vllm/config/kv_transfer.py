"""KV blocks that leave the engine."""

from dataclasses import dataclass
from typing import Any

from vllm.config.flags import JSON, later


@dataclass(frozen=True)
class KVTransferConfig:
    """Transfers, events and weight updates."""

    kv_transfer_config: dict[str, Any] | None = later(None, "KV transfer", kind=JSON)
    kv_events_config: dict[str, Any] | None = later(None, "KV events", kind=JSON)
    ec_transfer_config: dict[str, Any] | None = later(None, "encoder transfer", kind=JSON)
    ec_manager_config: dict[str, Any] | None = later(None, "encoder transfer", kind=JSON)
    weight_transfer_config: dict[str, Any] | None = later(None, "weight transfer", kind=JSON)
