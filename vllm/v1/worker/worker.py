"""One rank: threads, weights, KV memory, steps. The executor finds it by its dotted name."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm import envs
from vllm.exceptions import ConfigError
from vllm.plugins import LOGITS_PROCESSORS, load_group
from vllm.utils.dotted import resolve_dotted
from vllm.v1.messages import KVCacheConfig, KVLayerSpec, ModelRunnerOutput, SchedulerOutput
from vllm.v1.sample.logits_processors import CustomProcessors, load_processors
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.model_executor.model import Model


class Worker:
    """Lives in the engine process. Its methods are called in the order in which they stand."""

    def __init__(self, vllm_config: "VllmConfig") -> None:
        self.vllm_config = vllm_config
        self._custom: CustomProcessors | None = None
        self._model: Model | None = None
        self._runner: CPUModelRunner | None = None
        self._calls: dict[str, Callable[..., object]] = {
            "describe": self._describe,
            "limit_tokens": self._limit_tokens,
            "stats": self._stats,
        }

    def load_model(self) -> list[KVLayerSpec]:
        """Start the threads and load the weights; returns what a layer keeps per token."""
        from vllm.kernels.ops import set_num_threads
        from vllm.model_executor.model_loader import get_model

        named = self.vllm_config.model_config.logits_processors or ()
        classes = [*map(resolve_dotted, named), *load_group(LOGITS_PROCESSORS).values()]
        self._custom = load_processors(classes, self.vllm_config)
        if envs.VLLM_CPU_ISA:
            _select_isa(envs.VLLM_CPU_ISA)
        parallel = self.vllm_config.parallel_config
        set_num_threads(parallel.num_threads, parallel.thread_cpus)
        self._model = get_model(self.vllm_config)
        return self._model.kv_layers

    def initialize_cache(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the KV pool, build the step program and run it once."""
        model = self._loaded_model()
        model.bind_kv_cache(kv_cache_config, self.vllm_config.cache_config.kv_cache_dtype)
        self._runner = CPUModelRunner(self.vllm_config, model, kv_cache_config, self._custom)
        self._runner.warm_up()

    def execute_model(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step."""
        if self._runner is None:
            raise RuntimeError("execute_model before initialize_cache")
        return self._runner.execute_model(scheduled)

    def call(self, method: str, *args: object) -> object:
        """Answer a control call."""
        return self._calls[method](*args)

    def shutdown(self) -> None:
        """Drop the model; its memory goes with it."""
        self._runner = None
        self._model = None

    def _describe(self) -> str:
        from vllm.kernels.native import isa_report

        return isa_report()

    def _limit_tokens(self, num_tokens: int) -> None:
        self._loaded_model().limit_tokens(num_tokens)

    def _stats(self) -> dict[str, object]:
        return dict(self._loaded_model().stats())

    def _loaded_model(self) -> "Model":
        if self._model is None:
            raise RuntimeError("the model is not loaded")
        return self._model


def _select_isa(name: str) -> None:
    """Use the kernels that VLLM_CPU_ISA names instead of the best ones."""
    from vllm.kernels.ops import isas, set_isa

    if name not in isas():
        raise ConfigError(
            f"VLLM_CPU_ISA is {name!r}; this CPU has the kernels {', '.join(isas())}."
        )
    set_isa(name)
