"""`vllm check`: every effective value with its origin, and the memory plan; starts nothing."""

from vllm import envs
from vllm.config.flags import flags_of
from vllm.config.vllm import VllmConfig, config_classes
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.cli.serve import parse
from vllm.entrypoints.openai.cli_args import FrontendArgs

# Values that come out of an environment variable when no flag gives them.
_FROM_ENV = {"hf_token": "HF_TOKEN", "api_key": "VLLM_API_KEY",
             "kv_cache_memory_bytes": "VLLM_CPU_KVCACHE_SPACE"}
_SECRET = ("hf_token", "api_key")


def run(command: str, args: list[str]) -> None:
    """Validate and print; a wrong configuration raises ConfigError before anything is printed."""
    engine_args, server, parser = parse(command, args)
    config = engine_args.create_engine_config("server")
    for name, part in config_classes().items():
        resolved = getattr(config, name)
        rows = {key: getattr(resolved, key) for key, spec in flags_of(part).items()
                if not spec.missing}
        if rows:
            _print_rows(part.__name__, rows, engine_args, parser.origins, config)
    shown = {key: server[key] for key, spec in flags_of(FrontendArgs).items() if not spec.missing}
    given = {key for key in shown if f"--{key.replace('_', '-')}" in
             {arg.partition("=")[0].replace("_", "-") for arg in args}}
    _print_server(shown, given, parser.origins)
    _print_environment()
    print("\nMemory")
    if config.memory_plan is not None:
        for line in config.memory_plan.lines(int(config.model_config.max_model_len or 0)):
            print(f"  {line}")


def _print_rows(title: str, rows: dict[str, object], engine_args: EngineArgs,
                origins: dict[str, str], config: VllmConfig) -> None:
    print(f"\n{title}")
    for key, value in rows.items():
        print(f"  {key:38} {_text(key, value):30} {_origin(key, value, engine_args, origins)}")


def _origin(key: str, value: object, engine_args: EngineArgs, origins: dict[str, str]) -> str:
    if key in origins:
        return f"file {origins[key]}"
    if key in engine_args.given:
        return "flag"
    if _FROM_ENV.get(key, "") in envs.environ:
        return f"env {_FROM_ENV[key]}"
    return "default" if value == getattr(engine_args, key) else "model"


def _print_server(shown: dict[str, object], given: set[str], origins: dict[str, str]) -> None:
    print("\nServer")
    for key, value in shown.items():
        origin = "flag" if key in given else "default"
        if key in origins:
            origin = f"file {origins[key]}"
        elif key == "api_key" and value is None and envs.VLLM_API_KEY:
            value, origin = envs.VLLM_API_KEY, "env VLLM_API_KEY"
        print(f"  {key:38} {_text(key, value):30} {origin}")


def _print_environment() -> None:
    print("\nEnvironment")
    for row in envs.VARIABLES.values():
        if row.is_set:
            secret = any(word in row.name for word in ("KEY", "TOKEN"))
            print(f"  {row.name:38} {'(hidden)' if secret else row.value!s:30} {row.meaning}")


def _text(key: str, value: object) -> str:
    return "(hidden)" if key in _SECRET and value else str(value)
