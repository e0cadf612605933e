"""The name that programs import; see vllm.v1.engine.async_llm."""

from vllm.v1.engine.async_llm import AsyncLLM, AsyncLLMEngine

__all__ = ["AsyncLLM", "AsyncLLMEngine"]
