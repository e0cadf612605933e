"""EngineArgs: every engine flag as an attribute, and the way from them to a VllmConfig.

No flag is spelled here: they are the fields of the config dataclasses. Resolving ("auto" -> value)
always builds a new config; nothing is changed in place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from vllm import envs
from vllm.config.vllm import VllmConfig, build, check, config_classes
from vllm.engine.memory_plan import plan_memory, weights_bytes
from vllm.exceptions import ConfigError
from vllm.logger import init_logger

if TYPE_CHECKING:
    import argparse

    from typing_extensions import Self

    from vllm.transformers_utils.arch import ModelArch

logger = init_logger(__name__)

_DTYPES = {"half": "float16", "float": "float32"}

# (tokens per step, requests at once) for the server and for the LLM class.
_BUDGETS = {"server": (2048, 128), "llm": (4096, 256)}


def _argument_fields() -> list[tuple[str, Any, Any]]:
    """Every flag of every config as a dataclass field; the model is the first."""
    return [
        (f.name, f.type, dataclasses.field(
            default=f.default, default_factory=f.default_factory, metadata=f.metadata))
        for config in config_classes().values()
        for f in dataclasses.fields(config) if "flag" in f.metadata]


if TYPE_CHECKING:
    class _Arguments:
        def __init__(self, model: str | None = None, **values: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...
else:
    _Arguments = dataclasses.make_dataclass(
        "_Arguments", _argument_fields(), eq=False, repr=False)


_NAMES = tuple(name for name, _, _ in _argument_fields())


class EngineArgs(_Arguments):
    """Arguments of an engine, a dataclass; its fields are the flags with underscores.

    Raises ConfigError for a name that is not a flag; values are checked by `create_engine_config`.
    """

    default_context: ClassVar[str] = "llm"

    def __init__(self, model: str | None = None, **values: Any) -> None:
        for name in values:
            if name not in self.names():
                close = difflib.get_close_matches(name, self.names(), n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise ConfigError(f"{name} is not an engine argument{hint}")
        super().__init__(model, **values)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Every argument."""
        return _NAMES

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Declare every engine flag on any parser; a group per config."""
        from vllm.engine.arg_parser import add_config

        for config in config_classes().values():
            add_config(parser, config.__name__, config)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """The engine flags of a parsed command line; what is absent keeps its default."""
        return cls(**{name: value for name, value in vars(args).items() if name in cls.names()})

    def create_engine_config(
        self, usage_context: str | None = None, headless: bool = False
    ) -> VllmConfig:
        """Resolve and check everything; reads the model's config but not its weights.

        usage_context: "server" for an API server, which has smaller budgets than the LLM class;
        by default the server's for AsyncEngineArgs. Raises ConfigError.
        """
        from vllm.plugins import load_general_plugins

        if headless:
            raise ConfigError("headless: engines without an API server are not supported by this "
                              "build yet; leave it out.")
        load_general_plugins()
        config = build(_older_forms({name: getattr(self, name) for name in self.names()}))
        for warning in envs.check_environment(config.device_config.fail_on_environ_validation):
            logger.warning("%s", warning)
        config = _resolve_model(config)
        config = _resolve_scheduler(config, usage_context or self.default_context)
        config = _resolve_threads(config)
        check(config)
        config = plan_memory(config)
        check(config)
        return config


class AsyncEngineArgs(EngineArgs):
    """EngineArgs plus what only servers have."""

    default_context = "server"

    def __init__(self, model: str | None = None, enable_log_requests: bool = False,
                 **values: Any) -> None:
        super().__init__(model, **values)
        self.enable_log_requests = enable_log_requests

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Declare every engine flag, and --enable-log-requests unless the server's flags did."""
        from argparse import ArgumentError, BooleanOptionalAction

        with contextlib.suppress(ArgumentError):
            parser.add_argument("--enable-log-requests", action=BooleanOptionalAction,
                                default=False, help="log id and parameters of each request")
        return super().add_cli_args(parser)

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """The engine flags of a parsed command line; what is absent keeps its default."""
        engine_args = super().from_cli_args(args)
        engine_args.enable_log_requests = getattr(args, "enable_log_requests", False)
        return engine_args


def _older_forms(values: dict[str, Any]) -> dict[str, Any]:
    """Arguments as earlier releases and the LLM class take them, in the one form of the configs."""
    values = {k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in values.items()}
    compilation, level = values["compilation_config"], None
    if isinstance(compilation, int):
        level = compilation
    elif isinstance(compilation, dict) and len(compilation) == 1:
        level = next((compilation[key] for key in ("optimization_level", "level", "mode")
                      if key in compilation), None)
    if level is not None:
        values |= {"compilation_config": {}, "optimization_level": level}
    attention = values["attention_config"]
    if isinstance(attention, dict) and set(attention) == {"backend"}:
        if values["attention_backend"] not in (None, attention["backend"]):
            raise ConfigError("--attention-backend and --attention-config.backend differ; "
                              "give one of them.")
        values |= {"attention_config": None, "attention_backend": attention["backend"]}
    if values["load_format"] == "dummy" and values["model"] is None:
        raise ConfigError("load_format dummy needs a model whose config.json is to be used")
    if values["logits_processors"]:
        values["logits_processors"] = [
            name if isinstance(name, str) else f"{name.__module__}:{name.__qualname__}"
            for name in values["logits_processors"]]
    if isinstance(values["served_model_name"], str):
        values["served_model_name"] = [values["served_model_name"]]
    return values


def _resolve_model(config: VllmConfig) -> VllmConfig:
    from vllm.transformers_utils.arch import ModelArch
    from vllm.transformers_utils.config import load_hf_config

    model, load = config.model_config, config.load_config
    path, tokenizer_path = _resolve_paths(config)
    hf_config = load_hf_config(
        model.hf_config_path or path, model.config_format, model.hf_overrides)
    arch = ModelArch.from_hf(hf_config)
    dtype = _dtype(model.dtype, arch.torch_dtype, hf_config)
    kv_dtype = config.cache_config.kv_cache_dtype
    if kv_dtype == "auto":
        kv_dtype = "float32" if dtype == "float32" else "float16"
    load = replace(load, load_format={"hf": "safetensors"}.get(load.load_format, load.load_format))
    resolved = replace(
        model, path=path, tokenizer_path=tokenizer_path, arch=arch, hf_config=hf_config,
        dtype=dtype, served_model_name=model.served_model_name or _served_names(model.model),
        max_model_len=_max_model_len(model.max_model_len, arch),
        weights_bytes=weights_bytes(path, arch, dtype, load.load_format))
    return replace(config, model_config=resolved, load_config=load,
                   cache_config=replace(config.cache_config, kv_cache_dtype=kv_dtype))


def _resolve_paths(config: VllmConfig) -> tuple[str, str]:
    """(model, tokenizer) on this machine; downloads what is not there."""
    from vllm.transformers_utils.hub import resolve_model, resolve_tokenizer

    model, load = config.model_config, config.load_config
    token = model.hf_token if model.hf_token is not None else envs.HF_TOKEN
    path = resolve_model(
        model.model, model.revision, load.download_dir, token,
        ignore_patterns=load.ignore_patterns, show_progress=load.use_tqdm_on_load)
    if not model.tokenizer or model.tokenizer == model.model:
        return path, path
    return path, resolve_tokenizer(
        model.tokenizer, model.tokenizer_revision, load.download_dir, token)


def _served_names(model: str | None) -> list[str]:
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


def _max_model_len(asked: int | str | None, arch: ModelArch) -> int | str:
    if asked is None:
        return arch.default_max_model_len
    if asked in ("auto", -1):
        return "auto"
    if not isinstance(asked, int) or asked < 1:
        raise ConfigError(f"--max-model-len is {asked!r}; it must be 1 or more, or auto.")
    limit = max(arch.max_position, arch.model_max_length or 0)
    if asked > limit and not envs.VLLM_ALLOW_LONG_MAX_MODEL_LEN:
        raise ConfigError(
            f"--max-model-len is {asked}, but the model was made for at most {limit} tokens. "
            "Lower it, or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 if you know the model can do more.")
    return asked


def _resolve_scheduler(config: VllmConfig, usage_context: str) -> VllmConfig:
    scheduler, length = config.scheduler_config, config.model_config.max_model_len
    tokens, seqs = _BUDGETS["server" if "server" in usage_context.lower() else "llm"]
    if scheduler.performance_mode == "throughput":
        tokens, seqs = 2 * tokens, 2 * seqs
    elif scheduler.performance_mode == "interactivity":
        tokens //= 2  # running requests wait less for the prompts of others
    if not scheduler.enable_chunked_prefill and isinstance(length, int):
        tokens = max(tokens, length)
    asked_tokens, asked_seqs = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
    tokens = max(tokens, asked_seqs or 0) if asked_tokens is None else asked_tokens
    seqs = min(seqs, max(1, tokens)) if asked_seqs is None else asked_seqs
    return replace(config, scheduler_config=replace(
        scheduler, max_num_batched_tokens=tokens, max_num_seqs=seqs))


def _resolve_threads(config: VllmConfig) -> VllmConfig:
    from vllm.platforms import current_platform

    count, cpus = current_platform.compute_cpus()
    return replace(config, parallel_config=replace(
        config.parallel_config, num_threads=count, thread_cpus=cpus))


