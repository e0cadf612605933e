"""Divides the memory: weights and working memory first, the KV cache gets what is left."""

from dataclasses import replace
from pathlib import Path

from vllm import envs
from vllm.config.memory import GIB, MemoryPlan, gib
from vllm.config.vllm import VllmConfig
from vllm.exceptions import ConfigError
from vllm.transformers_utils.arch import ModelArch
from vllm.utils.memory import MemoryLimit
from vllm.v1.core.kv_cache_groups import (
    make_kv_cache_config,
    max_concurrency,
    max_request_tokens,
    page_bytes,
)
from vllm.v1.messages import KVLayerSpec

HEADROOM = GIB // 4
"""Left free for both interpreters, the front end and the system (measured: 70 MB when idle)."""

GGUF_GROWTH = 1.25
"""Packed block types may be larger than in the file; 6-bit ones are widened to 8."""

_SHARE, _FREE = "--gpu-memory-utilization", "free memory"

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def weights_bytes(path: str, arch: ModelArch, dtype: str, load_format: str) -> int:
    """Bytes of the packed weights, estimated from the files."""
    if load_format == "dummy":
        return _parameters(arch) * DTYPE_BYTES[dtype]
    location = Path(path)
    if location.is_file():
        stem, _, _ = location.name.partition("-00001-of-")
        parts = location.parent.glob(f"{stem}-0*-of-*.gguf") if stem != location.name else []
        return int(sum(p.stat().st_size for p in [*parts] or [location]) * GGUF_GROWTH)
    return sum(p.stat().st_size for p in location.glob("*.safetensors"))


def plan_memory(config: VllmConfig, limit: MemoryLimit | None = None) -> VllmConfig:
    """`config` with max_model_len, num_gpu_blocks and memory_plan filled in.

    Raises ConfigError if not even one request of max_model_len fits.
    """
    from vllm.platforms import current_platform

    limit = limit or current_platform.memory_limit()
    weights, activations = config.model_config.weights_bytes, _activation_bytes(config)
    kv_bytes, origin = _kv_bytes(config, limit, weights + activations + HEADROOM)
    source = origin
    if origin in (_SHARE, _FREE):
        whole = f"{config.cache_config.gpu_memory_utilization} of {gib(limit.total)} GiB" if (
            origin == _SHARE) else f"{gib(limit.available)} GiB"
        source = (f"{origin}: {whole} less {gib(weights)} for weights, {gib(activations)} for "
                  f"activations, {gib(HEADROOM)} headroom")
    config = _with_length(config, kv_bytes, source)
    page, blocks = _page(config), _num_blocks(config, kv_bytes)
    if config.cache_config.num_gpu_blocks_override:
        origin = "--num-gpu-blocks-override"
    elif blocks < kv_bytes // page:
        origin = f"what {config.scheduler_config.max_num_seqs} requests can use"
    length = _length(config)
    kv = make_kv_cache_config(_layers(config), blocks, config.cache_config.block_size, length)
    concurrency = max_concurrency(kv, length, _step_tokens(config))
    plan = MemoryPlan(
        limit.total, limit.source, limit.available, weights, activations, HEADROOM, blocks * page,
        origin, page, blocks, int(concurrency * length), concurrency)
    _check_total(plan)
    cache = replace(config.cache_config, num_gpu_blocks=blocks)
    return replace(config, cache_config=cache, memory_plan=plan)


def _check_total(plan: MemoryPlan) -> None:
    """Pages are touched as they are used: an explicit size that is too large would fail later."""
    if plan.kv_cache + plan.weights > plan.total:
        raise ConfigError(
            f"A KV cache of {gib(plan.kv_cache)} GiB ({plan.kv_origin}) and {gib(plan.weights)} "
            f"GiB of weights are more than the {gib(plan.total)} GiB that this process may use "
            f"({plan.total_source}); choose a smaller one.")


def _arch(config: VllmConfig) -> ModelArch:
    if config.model_config.arch is None:
        raise ConfigError("the model's config was not read before memory was planned")
    return config.model_config.arch


def _length(config: VllmConfig) -> int:
    return int(config.model_config.max_model_len or 0)


def _step_tokens(config: VllmConfig) -> int:
    return int(config.scheduler_config.max_num_batched_tokens or 0)


def _layers(config: VllmConfig) -> list[KVLayerSpec]:
    arch = _arch(config)
    return [KVLayerSpec(arch.num_kv_heads, arch.head_dim, window)
            for window in arch.attention_windows]


def _page(config: VllmConfig) -> int:
    cache = config.cache_config
    return page_bytes(_layers(config), cache.block_size, DTYPE_BYTES[cache.kv_cache_dtype],
                      _length(config))


def _parameters(arch: ModelArch) -> int:
    heads = (2 * arch.num_heads + 2 * arch.num_kv_heads) * arch.head_dim
    layer = arch.hidden_size * (heads + 3 * arch.intermediate_size)
    tables = 1 if arch.tie_word_embeddings else 2
    return arch.num_layers * layer + tables * arch.vocab_size * arch.hidden_size


def _activation_bytes(config: VllmConfig) -> int:
    """The arena of a full step: rows of the widest layer, and logits of every request."""
    arch, scheduler = _arch(config), config.scheduler_config
    heads = (2 * arch.num_heads + 2 * arch.num_kv_heads) * arch.head_dim
    row = 4 * (4 * arch.hidden_size + heads + 3 * arch.intermediate_size)
    seqs = int(scheduler.max_num_seqs or 0)
    return _step_tokens(config) * row + 2 * 4 * seqs * arch.vocab_size


def _kv_bytes(config: VllmConfig, limit: MemoryLimit, others: int) -> tuple[int, str]:
    cache = config.cache_config
    if cache.kv_cache_memory_bytes is not None:
        return cache.kv_cache_memory_bytes, "--kv-cache-memory-bytes"
    if envs.VLLM_CPU_KVCACHE_SPACE:
        return int(envs.VLLM_CPU_KVCACHE_SPACE * GIB), "VLLM_CPU_KVCACHE_SPACE"
    share = int(limit.total * cache.gpu_memory_utilization)
    if share <= limit.available:
        return max(0, share - others), _SHARE
    return max(0, limit.available - others), _FREE


def _with_length(config: VllmConfig, kv_bytes: int, source: str) -> VllmConfig:
    """Resolve max_model_len "auto" to the longest that fits; refuse one that does not."""
    length = config.model_config.max_model_len
    longest = _arch(config).max_position
    asked = longest if length == "auto" else int(length or 0)
    probe = replace(config, model_config=replace(config.model_config, max_model_len=asked))
    override = config.cache_config.num_gpu_blocks_override
    page, step = _page(probe), _step_tokens(config)
    blocks = override or kv_bytes // page
    kv = make_kv_cache_config(
        _layers(probe), max(2, blocks), config.cache_config.block_size, asked)
    fits = max_request_tokens(kv, step) if blocks >= 2 else 0
    if length == "auto" and fits > 0:
        best = min(asked, fits)
        return replace(config, model_config=replace(config.model_config, max_model_len=best))
    if fits < asked and not override:
        needed = page * (1 + round((kv.num_blocks - 1) / max_concurrency(kv, asked, step)))
        raise ConfigError(_too_small(asked, needed, kv_bytes, fits, source))
    return probe


def _too_small(asked: int, needed: int, kv_bytes: int, fits: int, source: str) -> str:
    longest = (f"The longest that fits is {fits:,}: use --max-model-len {fits}, or" if fits else
               "No request fits:")
    return (f"The KV cache of one request of {asked:,} tokens needs {gib(needed)} GiB, but "
            f"{gib(kv_bytes)} GiB are available ({source}). {longest} give it more memory, with "
            f"--kv-cache-memory-bytes {needed} or VLLM_CPU_KVCACHE_SPACE.")


def _num_blocks(config: VllmConfig, kv_bytes: int) -> int:
    """Blocks that fit, but not more than max_num_seqs sequences of max_model_len can use."""
    cache = config.cache_config
    if cache.num_gpu_blocks_override:
        return cache.num_gpu_blocks_override
    fitting = kv_bytes // _page(config)
    kv = make_kv_cache_config(_layers(config), max(2, fitting), cache.block_size, _length(config))
    per_request = (fitting - 1) / max_concurrency(kv, _length(config), _step_tokens(config))
    usable = int(per_request * int(config.scheduler_config.max_num_seqs or 1)) + 2
    return max(2, min(fitting, usable))
