"""`vllm serve`: parse the flags, start the server."""

from dataclasses import dataclass
from typing import Any

from vllm import envs
from vllm.engine.arg_parser import FlagParser, add_config
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.startup_log import options_line
from vllm.entrypoints.openai.cli_args import FrontendArgs, frontend_values
from vllm.logger import init_logger, set_process_name
from vllm.utils.process import set_process_title

logger = init_logger(__name__)

_EMBEDDED = "Without a model, the embedded SmolLM2-135M-Instruct is"
_DESCRIPTIONS = {
    "serve": f"Serve a model over the OpenAI API. {_EMBEDDED} served.",
    "check": f"Show the settings `vllm serve` would use and the memory plan. {_EMBEDDED} checked.",
}


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line of `serve` or `check`."""

    engine_args: AsyncEngineArgs
    server: dict[str, Any]
    """Every setting of FrontendArgs, with the keys of --api-key-file among the API keys."""
    given: dict[str, Any]
    """The flags that the command line or the file gave."""
    origins: dict[str, str]
    """Flag -> the file it is from."""


def make_parser(command: str = "serve") -> FlagParser:
    """The parser of `vllm serve` and `vllm check`."""
    parser = FlagParser(prog=f"vllm {command}", description=_DESCRIPTIONS[command])
    parser.add_argument("model_tag", nargs="?", metavar="model",
                        help="folder, .gguf file, hub id or embedded name")
    add_config(parser, "Server", FrontendArgs)
    AsyncEngineArgs.add_cli_args(parser)
    return parser


def parse(command: str, args: list[str]) -> CommandLine:
    """Exits with 2 on a wrong command line; raises ConfigError for values that can't be."""
    parser = make_parser(command)
    given = vars(parser.parse_args(args))
    tag, has_file = given.pop("model_tag", None), bool(parser.origins)
    if tag is not None:
        given["model"] = tag
        parser.origins.pop("model", None)
    elif "model" in given and "model" not in parser.origins:
        logger.warning("--model is an older form: write `vllm %s %s`", command, given["model"])
    elif "served_model_name" in given and not has_file:
        parser.error("--served-model-name names a model, but no model was given")
    names = AsyncEngineArgs.names()
    engine_args = AsyncEngineArgs(
        enable_log_requests=bool(given.get("enable_log_requests")),
        **{name: value for name, value in given.items() if name in names})
    return CommandLine(engine_args, frontend_values(given), given, parser.origins)


def run(command: str, args: list[str]) -> None:
    """Serve until a signal ends it."""
    set_process_name("APIServer")
    set_process_title(f"{envs.VLLM_PROCESS_NAME_PREFIX}::APIServer")
    line = parse(command, args)
    if line.given:
        logger.info("Options: %s", options_line(line.given))
    if "seed" in line.given:
        logger.warning("--seed: the server draws a seed for each request that has none; give "
                       "`seed` in requests to repeat them")
    from vllm.entrypoints.openai.api_server import serve

    serve(line.engine_args, line.server)
