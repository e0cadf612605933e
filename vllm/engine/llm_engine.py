"""The name that programs import; see vllm.v1.engine.llm_engine."""

from vllm.v1.engine.llm_engine import LLMEngine

__all__ = ["LLMEngine"]
