"""Checkpoint formats are readers: names, shapes, storage types and raw bytes."""

from vllm.model_executor.weights.checkpoint import Checkpoint, open_checkpoint
from vllm.model_executor.weights.raw import RawTensor

__all__ = ["Checkpoint", "RawTensor", "open_checkpoint"]
