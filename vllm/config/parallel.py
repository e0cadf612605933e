"""Several ranks: this build runs on one."""

from dataclasses import dataclass
from typing import Any

from vllm.config.flags import INT, JSON, STR, flag, later


@dataclass(frozen=True)
class ParallelConfig:
    """Sizes of the parallel groups and who runs the ranks."""

    distributed_executor_backend: str | None = flag(
        None, "who runs the ranks; uni is the engine process itself", kind=STR)
    tensor_parallel_size: int = later(1, "tensor parallelism", short=("-tp",))
    pipeline_parallel_size: int = later(1, "pipeline parallelism", short=("-pp",))
    data_parallel_size: int = later(1, "data parallelism", short=("-dp",))
    data_parallel_size_local: int | None = later(
        None, "data parallelism", kind=INT, short=("-dpl",))
    data_parallel_rank: int | None = later(None, "data parallelism", kind=INT, short=("-dpn",))
    data_parallel_start_rank: int | None = later(
        None, "data parallelism", kind=INT, short=("-dpr",))
    data_parallel_address: str = later("127.0.0.1", "data parallelism", short=("-dpa",))
    data_parallel_rpc_port: int = later(29550, "data parallelism", short=("-dpp",))
    data_parallel_backend: str = later("mp", "data parallelism", choices=("mp", "ray"),
                                       short=("-dpb",))
    data_parallel_hybrid_lb: bool = later(False, "data parallelism", short=("-dph",))
    data_parallel_external_lb: bool = later(False, "data parallelism", short=("-dpe",))
    data_parallel_multi_port_external_lb: bool = later(False, "data parallelism", short=("-dpm",))
    data_parallel_supervisor_port: int = later(9256, "data parallelism")
    dp_supervisor_probe_interval_s: float = later(5.0, "data parallelism")
    dp_supervisor_probe_timeout_s: float = later(5.0, "data parallelism")
    dp_supervisor_probe_failure_threshold: int = later(3, "data parallelism")
    dp_sync_interval: int = later(16, "data parallelism")
    nnodes: int = later(1, "several nodes", short=("-n",))
    node_rank: int = later(0, "several nodes", short=("-r",))
    master_addr: str = later("127.0.0.1", "several nodes")
    master_port: int = later(29501, "several nodes")
    enable_expert_parallel: bool = later(False, "expert parallelism", short=("-ep",))
    all2all_backend: str = later("allgather_reducescatter", "expert parallelism")
    enable_eplb: bool = later(False, "expert parallelism")
    eplb_config: dict[str, Any] | None = later(None, "expert parallelism", kind=JSON)
    expert_placement_strategy: str = later("linear", "expert parallelism",
                                           choices=("linear", "round_robin"))
    enable_ep_weight_filter: bool = later(False, "expert parallelism")
    decode_context_parallel_size: int = later(1, "context parallelism", short=("-dcp",))
    prefill_context_parallel_size: int = later(1, "context parallelism", short=("-pcp",))
    dcp_comm_backend: str | None = later(None, "context parallelism", kind=STR)
    cp_kv_cache_interleave_size: int = later(1, "context parallelism")
    dcp_q_replicate: bool = later(False, "context parallelism")
    enable_dbo: bool = later(False, "dual-batch overlap")
    ubatch_size: int = later(0, "dual-batch overlap")
    dbo_decode_token_threshold: int = later(32, "dual-batch overlap")
    dbo_prefill_token_threshold: int = later(512, "dual-batch overlap")
    max_parallel_loading_workers: int | None = later(None, "several ranks", kind=INT)
    disable_custom_all_reduce: bool = flag(False, "there is no all-reduce on one rank")
    worker_cls: str = flag("auto", "class of the worker, as module:Class")
    worker_extension_cls: str = later("", "worker extensions")
    ray_workers_use_nsight: bool = later(False, "Ray")
    device_ids: str | None = later(None, "GPUs", kind=STR)
    numa_bind: bool = later(False, "NUMA binding")
    numa_bind_nodes: str | None = later(None, "NUMA binding", kind=STR)
    numa_bind_cpus: str | None = later(None, "NUMA binding", kind=STR)
    distributed_timeout_seconds: int | None = later(None, "several ranks", kind=INT)
    cpu_distributed_timeout_seconds: int | None = later(None, "several ranks", kind=INT)
    enable_elastic_ep: bool = later(False, "elastic data parallelism")
    elastic_ep_max_dp_size: int | None = later(None, "elastic data parallelism", kind=INT)
    enable_fault_tolerance: bool = later(False, "elastic data parallelism")
    fault_tolerance_config: dict[str, Any] | None = later(
        None, "elastic data parallelism", kind=JSON)

    # Resolved: CPUs of the native threads, and whether threads are pinned to them.
    num_threads: int = 0
    thread_cpus: tuple[int, ...] = ()

    @property
    def world_size(self) -> int:
        """Ranks of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


