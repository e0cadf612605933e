"""The worker in the process of the engine core: one rank, plain calls."""

from typing import TYPE_CHECKING, Any

from vllm.utils.dotted import resolve_dotted
from vllm.v1.executor.base import Executor
from vllm.v1.messages import KVCacheConfig, KVLayerSpec, ModelRunnerOutput, SchedulerOutput

if TYPE_CHECKING:
    from vllm.config import VllmConfig

DEFAULT_WORKER = "vllm.v1.worker.worker:Worker"


class UniProcExecutor(Executor):
    """Forwards each call to the one worker."""

    def __init__(self, vllm_config: "VllmConfig") -> None:
        super().__init__(vllm_config)
        named = vllm_config.parallel_config.worker_cls
        worker_class = resolve_dotted(DEFAULT_WORKER if named == "auto" else named)
        self.worker: Any = worker_class(vllm_config)

    def load_model(self) -> list[KVLayerSpec]:
        layers: list[KVLayerSpec] = self.worker.load_model()
        return layers

    def initialize_cache(self, kv_cache_config: KVCacheConfig) -> None:
        self.worker.initialize_cache(kv_cache_config)

    def execute_model(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        output: ModelRunnerOutput = self.worker.execute_model(scheduled)
        return output

    def call(self, method: str, *args: object) -> object:
        answer: object = self.worker.call(method, *args)
        return answer

    def shutdown(self) -> None:
        self.worker.shutdown()
