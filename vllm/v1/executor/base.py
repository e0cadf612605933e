"""One call, many ranks: what the engine core needs from whatever runs the model."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from vllm.exceptions import ConfigError
from vllm.utils.dotted import resolve_dotted
from vllm.v1.messages import KVCacheConfig, KVLayerSpec, ModelRunnerOutput, SchedulerOutput

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_EXECUTORS = {"uni": "vllm.v1.executor.uniproc:UniProcExecutor"}


class Executor(ABC):
    """Runs steps on every rank. A rank that fails makes the call raise: the engine ends."""

    def __init__(self, vllm_config: "VllmConfig") -> None:
        self.vllm_config = vllm_config

    @abstractmethod
    def load_model(self) -> list[KVLayerSpec]:
        """Load the weights; returns what each attention layer keeps per token."""

    @abstractmethod
    def initialize_cache(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the KV pool and make the first step ready to run."""

    @abstractmethod
    def execute_model(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step."""

    @abstractmethod
    def call(self, method: str, *args: object) -> object:
        """A control call that every rank answers; rank 0's answer. See Worker.CALLS."""

    @abstractmethod
    def shutdown(self) -> None:
        """Release everything; called once."""


def get_executor_class(vllm_config: "VllmConfig") -> type[Executor]:
    """`uni`, or the class that `--distributed-executor-backend` names as module:Class."""
    backend = vllm_config.parallel_config.distributed_executor_backend or "uni"
    named = _EXECUTORS.get(backend, backend)
    if ":" not in named and "." not in named:
        raise ConfigError(
            f"--distributed-executor-backend {backend} is not available; "
            f"use one of {sorted(_EXECUTORS)} or the path of a class."
        )
    found = resolve_dotted(named)
    if not (isinstance(found, type) and issubclass(found, Executor)):
        raise ConfigError(f"--distributed-executor-backend {backend} is not an Executor class.")
    return found
