"""Attention over a paged cache: the step's input, and the backends that compute it."""

from vllm.attention.backend import AttentionBackend, StepInput
from vllm.attention.selector import select_backend

__all__ = ["AttentionBackend", "StepInput", "select_backend"]
