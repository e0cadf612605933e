"""EngineArgs: every engine flag as an attribute, and the way from them to a VllmConfig.

No flag is spelled here: they are the fields of the config dataclasses.
"""

import argparse
from dataclasses import replace
from typing import Any

from vllm import envs
from vllm.config.flags import flags_of
from vllm.config.vllm import VllmConfig, build, check, check_supported, config_classes
from vllm.engine.arg_parser import FlagParser
from vllm.engine.memory_plan import plan_memory, weights_bytes
from vllm.exceptions import ConfigError
from vllm.logger import init_logger

logger = init_logger(__name__)

_TITLES = {name: config.__name__ for name, config in config_classes().items()}
_DTYPES = {"half": "float16", "float": "float32"}

# (tokens per step, requests at once) for the server and for the LLM class.
_SERVER_BUDGET = (2048, 128)
_OFFLINE_BUDGET = (4096, 256)


def _defaults() -> dict[str, Any]:
    values: dict[str, Any] = {}
    for config in config_classes().values():
        instance = config()
        values |= {name: getattr(instance, name) for name in flags_of(config)}
    return values


class EngineArgs:
    """Arguments of an engine; keyword names are the flags with underscores.

    Raises ConfigError for a name that is not a flag.
    """

    def __init__(self, model: str | None = None, **values: Any) -> None:
        known = _defaults()
        unknown = sorted(set(values) - set(known))
        if unknown:
            import difflib

            close = difflib.get_close_matches(unknown[0], known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ConfigError(f"{unknown[0]} is not an engine argument{hint}")
        self.given: dict[str, Any] = dict(values)
        if model is not None:
            self.given["model"] = model
        self.origins: dict[str, str] = {}
        for name, value in (known | self.given).items():
            setattr(self, name, value)

    @staticmethod
    def add_cli_args(parser: FlagParser) -> FlagParser:
        """Declare every engine flag."""
        for name, config in config_classes().items():
            parser.add_config(_TITLES[name], config)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> "EngineArgs":
        """The engine flags of a parsed command line."""
        known = _defaults()
        return cls(**{name: value for name, value in vars(args).items() if name in known})

    def values(self) -> dict[str, Any]:
        """The current value of every argument (attributes may have been set since)."""
        return {name: getattr(self, name) for name in _defaults()}

    def create_engine_config(
        self, usage_context: str | None = None, headless: bool = False
    ) -> VllmConfig:
        """Resolve and check everything; reads the model's config but not its weights.

        usage_context: "server" for the API server, which has smaller budgets than the LLM class.
        Raises ConfigError.
        """
        for warning in envs.check_environment(bool(self.fail_on_environ_validation)):
            logger.warning(warning)
        config = build(_older_forms(self.values()))
        check_supported(config)
        config = _resolve_model(config)
        config = _resolve_scheduler(config, usage_context)
        config = _resolve_threads(config)
        _check_quantization(config)
        check(config)
        config = plan_memory(config)
        check(config)   # again: the length may have been "auto"
        return config

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no argument {name}")


class AsyncEngineArgs(EngineArgs):
    """EngineArgs plus what only servers have."""

    def __init__(self, model: str | None = None, enable_log_requests: bool = False,
                 **values: Any) -> None:
        super().__init__(model, **values)
        self.enable_log_requests = enable_log_requests


def _older_forms(values: dict[str, Any]) -> dict[str, Any]:
    """Arguments as earlier releases took them."""
    compilation = values["compilation_config"]
    if isinstance(compilation, int):
        values["compilation_config"], values["optimization_level"] = {}, compilation
    elif isinstance(compilation, dict) and set(compilation) <= {"optimization_level", "level",
                                                               "mode"} and compilation:
        values["compilation_config"] = {}
        values["optimization_level"] = next(iter(compilation.values()))
    if values["swap_space"] is not None:
        logger.warning("swap_space is ignored: preempted requests are recomputed, not swapped")
    if values["load_format"] == "dummy" and values["model"] is None:
        raise ConfigError("load_format dummy needs a model whose config.json is to be used")
    names = values["logits_processors"]
    if names:
        values["logits_processors"] = [
            name if isinstance(name, str) else f"{name.__module__}:{name.__qualname__}"
            for name in names]
    if isinstance(values["served_model_name"], str):
        values["served_model_name"] = [values["served_model_name"]]
    return values


def _resolve_model(config: VllmConfig) -> VllmConfig:
    from vllm.transformers_utils.arch import ModelArch
    from vllm.transformers_utils.config import load_hf_config
    from vllm.transformers_utils.hub import resolve_model, resolve_tokenizer

    model, load = config.model_config, config.load_config
    token = model.hf_token if model.hf_token is not None else envs.HF_TOKEN
    path = resolve_model(model.model, model.revision, load.download_dir, token)
    tokenizer_path = path
    if model.tokenizer and model.tokenizer != model.model:
        tokenizer_path = resolve_tokenizer(
            model.tokenizer, model.tokenizer_revision, load.download_dir, token)
    hf_config = load_hf_config(
        model.hf_config_path or path, model.config_format, model.hf_overrides)
    arch = ModelArch.from_hf(hf_config)
    dtype = _dtype(model.dtype, arch.torch_dtype, hf_config)
    kv_dtype = config.cache_config.kv_cache_dtype
    if kv_dtype == "auto":
        kv_dtype = "float32" if dtype == "float32" else "float16"
    resolved = replace(
        model, path=path, tokenizer_path=tokenizer_path, arch=arch, hf_config=hf_config,
        dtype=dtype, served_model_name=model.served_model_name or _served_names(model.model, path),
        max_model_len=_max_model_len(model.max_model_len, arch),
        weights_bytes=weights_bytes(path, arch, dtype, load.load_format))
    return replace(config, model_config=resolved,
                   cache_config=replace(config.cache_config, kv_cache_dtype=kv_dtype))


def _served_names(model: str | None, path: str) -> list[str]:
    from vllm.transformers_utils.embedded import EMBEDDED_NAME, is_embedded_name

    if model is None or is_embedded_name(model):
        return [EMBEDDED_NAME]
    return [model]


def _dtype(asked: str, stored: str, hf_config: dict[str, Any]) -> str:
    """auto keeps what is stored; a quantized GGUF file counts as float16."""
    if asked != "auto":
        return _DTYPES.get(asked, asked)
    if hf_config.get("_gguf"):
        return stored if stored in ("float32", "bfloat16") else "float16"
    return stored


def _max_model_len(asked: Any, arch: Any) -> int | str:
    if asked is None:
        return int(arch.default_max_model_len)
    if asked in ("auto", -1):
        return "auto"
    if asked < 1:
        raise ConfigError(f"--max-model-len is {asked}; it must be 1 or more, or auto.")
    limit = max(arch.max_position, arch.model_max_length or 0)
    if asked > limit and not envs.VLLM_ALLOW_LONG_MAX_MODEL_LEN:
        raise ConfigError(
            f"--max-model-len is {asked}, but the model was made for at most {limit} tokens. "
            "Lower it, or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 if you know the model can do more.")
    return int(asked)


def _resolve_scheduler(config: VllmConfig, usage_context: str | None) -> VllmConfig:
    scheduler, length = config.scheduler_config, config.model_config.max_model_len
    tokens, seqs = _SERVER_BUDGET if usage_context == "server" else _OFFLINE_BUDGET
    if scheduler.performance_mode == "throughput":
        tokens, seqs = 2 * tokens, 2 * seqs
    if not scheduler.enable_chunked_prefill and isinstance(length, int):
        tokens = max(tokens, length)
    tokens = scheduler.max_num_batched_tokens or tokens
    seqs = scheduler.max_num_seqs or min(seqs, tokens)
    return replace(config, scheduler_config=replace(
        scheduler, max_num_batched_tokens=tokens, max_num_seqs=seqs))


def _resolve_threads(config: VllmConfig) -> VllmConfig:
    from vllm.utils.threads import compute_cpus

    count, cpus = compute_cpus(envs.VLLM_CPU_OMP_THREADS_BIND, envs.VLLM_CPU_NUM_OF_RESERVED_CPU)
    return replace(config, parallel_config=replace(
        config.parallel_config, num_threads=count, thread_cpus=cpus))


def _check_quantization(config: VllmConfig) -> None:
    model = config.model_config
    own = "gguf" if model.hf_config.get("_gguf") else (model.arch and model.arch.quant_method)
    if model.quantization and model.quantization != own:
        raise ConfigError(
            f"--quantization {model.quantization} is not supported by this build yet for this "
            f"model, whose weights are {own or 'not quantized'}; leave the flag out.")


