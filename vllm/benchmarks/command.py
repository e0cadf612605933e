"""The command line of benchmarks: their own flags beside those of the engine."""

import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from vllm.config.flags import flags_of, make_config
from vllm.engine.arg_parser import FlagParser, add_config
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import ConfigError

T = TypeVar("T")


def parse(kind: str, config: type[T], argv: list[str]) -> tuple[T, dict[str, Any]]:
    """(the benchmark's arguments, engine arguments that were given)."""
    parser = FlagParser(prog=f"vllm bench {kind}")
    add_config(parser, kind.capitalize(), config)
    own = set(flags_of(config))
    EngineArgs.add_cli_args(parser)
    given = vars(parser.parse_args(argv))
    return make_config(config, given), {k: v for k, v in given.items() if k not in own}


def run_module(kind: str, main: Callable[[list[str] | None], None]) -> None:
    """`python -m vllm.benchmarks.benchmark_<kind>`."""
    try:
        main(None)
    except ConfigError as error:
        sys.exit(f"vllm bench {kind}: {error}")


def pairs(values: Iterable[str] | None, flag: str) -> dict[str, str]:
    """KEY=VALUE words as a dict."""
    result = {}
    for word in values or ():
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise ConfigError(f"{flag} {word!r} must be KEY=VALUE.")
        result[key] = value
    return result
