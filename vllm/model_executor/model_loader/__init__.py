"""Loading a model, under the name that users import."""

from vllm.model_executor.build import get_model

__all__ = ["get_model"]
