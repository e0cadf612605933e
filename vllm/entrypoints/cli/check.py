"""`vllm check`: every effective value with its origin, and the memory plan; starts nothing."""

from collections.abc import Mapping

from vllm import envs
from vllm.config.flags import flags_of
from vllm.config.vllm import VllmConfig, config_classes
from vllm.entrypoints.cli.serve import CommandLine, parse
from vllm.entrypoints.openai.cli_args import FrontendArgs

# Values that come out of an environment variable when no flag gives them.
_FROM_ENV = {"hf_token": "HF_TOKEN", "api_key": "VLLM_API_KEY",
             "kv_cache_memory_bytes": "VLLM_CPU_KVCACHE_SPACE"}
_SECRET = ("hf_token", "api_key")
# What "auto" or nothing becomes, if not the default: read from the model, or from this machine.
_FROM_MODEL = ("dtype", "max_model_len", "served_model_name")


def run(command: str, args: list[str]) -> None:
    """Validate and print; a wrong configuration raises ConfigError before anything is printed."""
    from vllm.entrypoints.openai.exposure import DEFAULT_HOST

    line = parse(command, args)
    _check_server(FrontendArgs(**line.server))
    config = line.engine_args.create_engine_config("server")
    server = dict(line.server)
    if not server["api_key"] and envs.VLLM_API_KEY:
        server["api_key"] = envs.VLLM_API_KEY
    if server["host"] is None and server["uds"] is None:
        server["host"] = DEFAULT_HOST
    for name, part in config_classes().items():
        resolved = getattr(config, name)
        values = {key: getattr(resolved, key) for key in flags_of(part)}
        _print_section(part, _with_plan(name, values, config), line)
    _print_section(FrontendArgs, server, line)
    _print_environment()
    print("\nMemory and threads")
    for text in summary(config):
        print(f"  {text}")


def _check_server(options: FrontendArgs) -> None:
    """What the server itself refuses before it starts."""
    from vllm.entrypoints.chat import load_chat_template
    from vllm.entrypoints.openai.exposure import check_exposure

    check_exposure(options)
    load_chat_template(options.chat_template)


def summary(config: VllmConfig) -> list[str]:
    """The machine's part in the configuration, in words."""
    from vllm.utils.threads import format_cpus

    parallel = config.parallel_config
    pinned = f", pinned to CPUs {format_cpus(list(parallel.thread_cpus))}" if (
        parallel.thread_cpus) else ""
    plan = config.memory_plan
    return [f"{parallel.num_threads} compute threads{pinned}",
            *(plan.lines(int(config.model_config.max_model_len or 0)) if plan else ())]


def _with_plan(name: str, values: dict[str, object], config: VllmConfig) -> dict[str, object]:
    if name == "cache_config":
        values["num_gpu_blocks"] = config.cache_config.num_gpu_blocks
    return values


def _print_section(part: type, values: Mapping[str, object], line: CommandLine) -> None:
    specs = flags_of(part)
    rows = {key: value for key, value in values.items()
            if key not in specs or specs[key].is_supported}
    if rows:
        print(f"\n{'Server' if part is FrontendArgs else part.__name__}")
    for key, value in rows.items():
        print(f"  {key:36} {_text(key, value):32} {_origin(part, key, value, line)}")


def _origin(part: type, key: str, value: object, line: CommandLine) -> str:
    if key in line.origins:
        return f"file {line.origins[key]}"
    if key in line.given or (key == "api_key" and "api_key_file" in line.given):
        return "flag"
    if _FROM_ENV.get(key, "") in envs.environ:
        return f"env {_FROM_ENV[key]}"
    if key in _FROM_MODEL and value != getattr(part(), key):
        return "model"
    return "memory plan" if key == "num_gpu_blocks" else "default"


def _print_environment() -> None:
    rows = [row for row in envs.VARIABLES.values() if row.is_set]
    if rows:
        print("\nEnvironment")
    for row in rows:
        secret = any(word in row.name for word in ("KEY", "TOKEN"))
        print(f"  {row.name:36} {'(hidden)' if secret else row.value!s:32} {row.meaning}")


def _text(key: str, value: object) -> str:
    return "(hidden)" if key in _SECRET and value else str(value)
