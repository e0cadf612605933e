"""`vllm <command>`: a table of commands; only the chosen one is imported."""

import os
import sys
from importlib import import_module

from vllm.exceptions import ConfigError
from vllm.version import __version__

COMMANDS = {
    "serve": ("vllm.entrypoints.cli.serve", "serve a model over the OpenAI API"),
    "check": ("vllm.entrypoints.cli.check", "show effective settings and the memory plan"),
    "chat": ("vllm.entrypoints.cli.chat", "talk to a running server"),
    "complete": ("vllm.entrypoints.cli.chat", "complete text with a running server"),
    "bench": ("vllm.entrypoints.cli.bench", "measure latency, throughput, serving and start-up"),
    "collect-env": ("vllm.entrypoints.cli.collect_env", "print what a bug report needs"),
}

# Commands of vLLM that this build does not have.
MISSING = ("run-batch", "launch", "download-kernels", "preload", "snapshot")


def main(argv: list[str] | None = None) -> None:
    """Run one command; exits with 2 for a wrong command line, 1 for a wrong configuration."""
    args = sys.argv[1:] if argv is None else argv
    command = args[0] if args else "--help"
    if command in ("-v", "--version"):
        print(__version__)
    elif command in ("-h", "--help"):
        print(_help())
    elif command in COMMANDS:
        _run(command, args[1:])
    elif command in MISSING:
        sys.exit(f"vllm {command}: not supported by this build yet")
    else:
        print(f"vllm: unknown command {command!r}{_close_to(command)}\n\n{_help()}",
              file=sys.stderr)
        sys.exit(2)


def _run(command: str, args: list[str]) -> None:
    try:
        import_module(COMMANDS[command][0]).run(command, args)
    except ConfigError as error:
        sys.exit(f"vllm {command}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output is gone (`vllm check | head`); nothing more can be flushed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _close_to(command: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(command, COMMANDS, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _help() -> str:
    rows = "\n".join(f"  {name:12} {meaning}" for name, (_, meaning) in COMMANDS.items())
    return (f"usage: vllm <command> [options]\n\n{rows}\n\n"
            "vllm <command> --help shows the options; vllm --version the version.")


if __name__ == "__main__":
    main()
