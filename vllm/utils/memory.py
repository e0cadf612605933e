"""How much memory this process may use: RAM, cgroup limits (v1 and v2), RLIMIT_AS."""

import contextlib
import resource
from dataclasses import dataclass
from pathlib import Path

from vllm.utils.cgroup import CGROUP, PROC, cgroup_folders

_NO_LIMIT = 1 << 60
"""Version 1 of cgroups writes a number near 2^63 where there is no limit."""


@dataclass(frozen=True)
class MemoryLimit:
    """Bytes that may be used in all and that are free now, and what sets the limit."""

    total: int
    available: int
    source: str


def memory_limit(proc: Path = PROC, cgroup: Path = CGROUP) -> MemoryLimit:
    """The tightest of the limits that hold for this process."""
    info = _meminfo(proc)
    limits = [MemoryLimit(info["MemTotal"], info["MemAvailable"], "RAM")]
    for folder in cgroup_folders("memory", proc, cgroup):
        limits += _cgroup_limits(folder)
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append(MemoryLimit(soft, max(0, soft - _address_space(proc)), "RLIMIT_AS"))
    tightest = min(limits, key=lambda limit: limit.total)
    return MemoryLimit(
        tightest.total, min(limit.available for limit in limits), tightest.source)


def _meminfo(proc: Path) -> dict[str, int]:
    rows = (line.split() for line in (proc / "meminfo").read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) > 1}


def _address_space(proc: Path) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((proc / "self/statm").read_text().split()[0]) * resource.getpagesize()
    return 0


def _cgroup_limits(folder: Path) -> list[MemoryLimit]:
    for limit_file, usage_file, cache_key in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with contextlib.suppress(OSError, ValueError):
            limit = int((folder / limit_file).read_text())
            if limit >= _NO_LIMIT:
                continue
            used = int((folder / usage_file).read_text())
            return [MemoryLimit(limit, max(0, limit - used + _stat(folder, cache_key)), "cgroup")]
    return []


def _stat(folder: Path, key: str) -> int:
    """Page cache that the kernel gives back when memory is short."""
    with contextlib.suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, value = line.split()
            if name == key:
                return int(value)
    return 0
