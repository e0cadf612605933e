"""What the log says of a start, in the words that users of vLLM look for.

With the given options, the two lines of the phases, the address and the final line, a start takes
at most 15 lines.
"""

from collections.abc import Mapping

from vllm.config.flags import option_of
from vllm.config.memory import gib
from vllm.config.vllm import VllmConfig
from vllm.version import __version__

_SECRET = ("hf_token", "api_key")
_MAX_OPTIONS = 400
"""Characters of the line with the given options; one of them may be a whole template."""


def options_line(given: Mapping[str, object]) -> str:
    """The options that were given, without secrets."""
    text = ", ".join(f"{option_of(name)} {'(hidden)' if name in _SECRET else value}"
                     for name, value in given.items())
    return text[:_MAX_OPTIONS] + "..." if len(text) > _MAX_OPTIONS else text


def config_lines(config: VllmConfig) -> list[str]:
    """What is about to be served, with which limits, and the arithmetic of the memory."""
    model, scheduler = config.model_config, config.scheduler_config
    arch, length = model.arch, int(model.max_model_len or 0)
    architecture = f" ({arch.architectures[0]}, {arch.num_layers} layers)" if arch else ""
    lines = [
        f"vLLM {__version__}: {(model.served_model_name or ['?'])[0]}{architecture} "
        f"from {model.path}",
        f"dtype {model.dtype}, KV cache {config.cache_config.kv_cache_dtype}, context {length:,} "
        f"tokens, {scheduler.max_num_seqs} requests at once, "
        f"{scheduler.max_num_batched_tokens:,} tokens per step",
    ]
    return lines + (config.memory_plan.lines(length) if config.memory_plan else [])


def engine_lines(config: VllmConfig, kernels: str, phases: Mapping[str, float]) -> list[str]:
    """What the engine process reported: the kernels that run, and how long loading took."""
    from vllm.platforms import current_platform

    weights = phases.get("load weights", 0.0)
    return [
        f"{current_platform.device_name()}, kernels {kernels}",
        f"Model loading took {gib(config.model_config.weights_bytes)} GiB and "
        f"{weights:.2f} seconds",
        "init engine (profile, create kv cache, warmup model) took "
        f"{sum(phases.values()) - weights:.2f} seconds",
    ]
