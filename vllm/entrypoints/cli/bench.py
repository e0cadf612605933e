"""`vllm bench <kind>`: a table of benchmarks; only the chosen one is imported."""

import sys
from importlib import import_module

KINDS = {
    "latency": "how long one batch takes",
    "throughput": "requests and tokens per second with a full queue",
    "serve": "latencies and throughput of a running server under load",
    "startup": "from the start of the process to the first token",
}
MISSING = ("sweep", "mm-processor")


def run(command: str, args: list[str]) -> None:
    """Run one benchmark. Flags without a kind mean throughput, as older releases had it."""
    if not args or args[0] in ("-h", "--help"):
        print(_help())
        return
    kind, rest = (args[0], args[1:]) if not args[0].startswith("-") else ("throughput", args)
    if kind in MISSING:
        sys.exit(f"vllm bench {kind}: not supported by this build yet")
    if kind not in KINDS:
        print(f"vllm bench: unknown kind {kind!r}\n\n{_help()}", file=sys.stderr)
        sys.exit(2)
    import_module(f"vllm.benchmarks.benchmark_{kind}").main(rest)


def _help() -> str:
    rows = "\n".join(f"  {kind:12} {meaning}" for kind, meaning in KINDS.items())
    return (
        f"usage: vllm bench <kind> [options]\n\n{rows}\n\nvllm bench <kind> --help shows options."
    )
