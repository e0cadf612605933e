"""`vllm serve`: parse the flags, start the server."""

from vllm.engine.arg_parser import FlagParser
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.entrypoints.openai.cli_args import FrontendArgs, frontend_values


def make_parser(command: str = "serve") -> FlagParser:
    """The parser of `vllm serve` and `vllm check`."""
    parser = FlagParser(
        prog=f"vllm {command}",
        description="Without a model, the embedded SmolLM2-135M-Instruct is used.")
    parser.add_argument("model_tag", nargs="?", default=None,
                        help="folder, .gguf file, hub id or embedded name")
    parser.add_config("Server", FrontendArgs)
    EngineArgs.add_cli_args(parser)
    return parser


def parse(command: str, args: list[str]) -> tuple[AsyncEngineArgs, dict[str, object], FlagParser]:
    """(engine arguments, server settings, parser); exits with 2 on a wrong command line."""
    parser = make_parser(command)
    namespace = parser.parse_args(args)
    given = vars(namespace)
    tag = given.pop("model_tag", None)
    if tag is not None:
        given["model"] = tag
    elif "served_model_name" in given and "model" not in given:
        parser.error("--served-model-name names a model, but no model was given")
    engine_args = AsyncEngineArgs.from_cli_args(namespace)
    return engine_args, frontend_values(given), parser  # type: ignore[return-value]


def run(command: str, args: list[str]) -> None:
    """Serve until a signal ends it."""
    engine_args, server, _ = parse(command, args)
    from vllm.entrypoints.openai.api_server import serve

    serve(engine_args, server)
