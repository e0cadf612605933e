"""What can be seen of a running engine."""

from dataclasses import dataclass
from typing import Any

from vllm.config.flags import FLOAT, JSON, STR, STR_LIST, flag, later


@dataclass(frozen=True)
class ObservabilityConfig:
    """Metrics, statistics and traces."""

    otlp_traces_endpoint: str | None = later(None, "OpenTelemetry traces", kind=STR)
    enable_opentelemetry: bool = later(False, "OpenTelemetry traces")
    collect_detailed_traces: list[str] | None = later(
        None, "OpenTelemetry traces", kind=STR_LIST)
    disable_log_stats: bool = flag(False, "no statistics and no metrics of the engine")
    aggregate_engine_logging: bool = flag(False, "one line for all engines; there is one")
    show_hidden_metrics_for_version: str | None = later(None, "hidden metrics", kind=STR)
    kv_cache_metrics: bool = later(False, "KV block residency metrics")
    kv_cache_metrics_sample: float = later(0.01, "KV block residency metrics", kind=FLOAT)
    cudagraph_metrics: bool = later(False, "CUDA graphs")
    enable_mfu_metrics: bool = later(False, "FLOP metrics")
    enable_layerwise_nvtx_tracing: bool = later(False, "NVTX")
    enable_logging_iteration_details: bool = later(False, "a log line per step")
    per_request_spec_decode_metrics: str = later(
        "none", "speculative decoding", choices=("none", "summary", "detailed"))
    custom_histogram_buckets: dict[str, Any] | None = flag(
        None, "bucket family -> bounds of the histograms", kind=JSON)
    logging_config: dict[str, Any] | None = later(
        None, "logging by flag (use VLLM_LOGGING_CONFIG_PATH)", kind=JSON)
    log_level: str | None = later(None, "logging by flag (use VLLM_LOGGING_LEVEL)", kind=STR)


@dataclass(frozen=True)
class ProfilerConfig:
    """Profiling of steps."""

    profiler_config: dict[str, Any] = later({}, "the profiler")
