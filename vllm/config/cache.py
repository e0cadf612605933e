"""The KV cache: how large, in which type, shared how."""

from dataclasses import dataclass

from vllm.config.flags import BOOL, FLOAT, HUMAN_INT, INT, STR, STR_LIST, flag, later

KV_DTYPES = ("auto", "float32", "float16", "bfloat16")
QUANTIZED_KV_DTYPES = (
    "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4", "nvfp4_4over6",
    "nvfp4_ds_mla", "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head",
    "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc",
    "ultraquant_4bit",
)  # fmt: skip


@dataclass(frozen=True)
class CacheConfig:
    """The paged KV cache."""

    gpu_memory_utilization: float = flag(
        0.9, "share of the memory that this process may use in all",
        aliases=("--device-memory-utilization",))
    kv_cache_memory_bytes: int | None = flag(
        None, "size of the KV cache; overrides the share", kind=HUMAN_INT)
    block_size: int = flag(32, "tokens per block; a multiple of 16")
    kv_cache_dtype: str = flag(
        "auto", "type of keys and values; auto: float32 with --dtype float32, else float16",
        choices=KV_DTYPES, feature="a quantized KV cache", missing=QUANTIZED_KV_DTYPES)
    kv_cache_dtype_skip_layers: list[str] = later([], "a quantized KV cache", kind=STR_LIST)
    calculate_kv_scales: bool = later(False, "a quantized KV cache")
    num_gpu_blocks_override: int | None = flag(
        None, "number of KV blocks, whatever fits", kind=INT)
    enable_prefix_caching: bool = flag(True, "share the blocks of equal prefixes")
    prefix_caching_hash_algo: str = flag(
        "sha256", "hash of blocks: keyed per process, or sha256_cbor for equal hashes everywhere",
        choices=("sha256", "sha256_cbor"), feature="a hash that can be made to collide",
        missing=("xxhash", "xxhash_cbor"))
    prefix_match_unit: int | None = later(None, "hits inside a block", kind=INT)
    prefix_cache_retention_interval: int = later(0, "checkpoints of window caches")
    swap_space: float | None = flag(
        None, "GiB for swapped requests of the older engine; has no effect", kind=FLOAT,
        note="preempted requests are recomputed, nothing is swapped")
    cpu_offload_gb: float = later(0.0, "weight offloading")
    cpu_offload_params: list[str] | None = later(None, "weight offloading", kind=STR_LIST)
    offload_backend: str = later("auto", "weight offloading", choices=("auto", "uva", "prefetch"))
    offload_group_size: int = later(0, "weight offloading")
    offload_num_in_group: int = later(1, "weight offloading")
    offload_prefetch_step: int = later(1, "weight offloading")
    offload_params: list[str] | None = later(None, "weight offloading", kind=STR_LIST)
    kv_offloading_size: float | None = later(None, "KV offloading", kind=FLOAT)
    kv_offloading_backend: str = later("native", "KV offloading", choices=("native", "lmcache"))
    kv_sharing_fast_prefill: bool = later(False, "layers that share KV")
    swa_bounded_replay: bool = later(True, "recomputing windows beyond their bounds")
    mamba_cache_dtype: str = later("auto", "recurrent models")
    mamba_ssm_cache_dtype: str = later("auto", "recurrent models")
    mamba_block_size: int | None = later(None, "recurrent models", kind=INT)
    mamba_cache_mode: str = later("none", "recurrent models", choices=("none", "align", "all"))
    mamba_backend: str | None = later(None, "recurrent models", kind=STR)
    mamba_ssu_algorithm: str | None = later(None, "recurrent models", kind=STR)
    use_replayssm: bool = later(False, "recurrent models")
    replayssm_buffer_len: int = later(16, "recurrent models")
    enable_mamba_cache_stochastic_rounding: bool = later(False, "recurrent models")
    mamba_cache_philox_rounds: int | None = later(None, "recurrent models", kind=INT)
    disable_hybrid_kv_cache_manager: bool | None = later(
        None, "one KV group for all layers", kind=BOOL)

    # Resolved.
    num_gpu_blocks: int = 0
