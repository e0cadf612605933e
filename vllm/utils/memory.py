"""How much memory this process may use: RAM, cgroup limits (v1 and v2), RLIMIT_AS."""

import contextlib
import resource
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class MemoryLimit:
    """Bytes that may be used in all and that are free now, and what sets the limit."""

    total: int
    available: int
    source: str


def memory_limit(proc: Path = _PROC, cgroup: Path = _CGROUP) -> MemoryLimit:
    """The tightest of the limits that hold for this process."""
    info = _meminfo(proc)
    limits = [MemoryLimit(info["MemTotal"], info["MemAvailable"], "RAM")]
    for folder in _cgroup_folders(proc, cgroup):
        limits += _cgroup_limits(folder)
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append(MemoryLimit(soft, soft, "RLIMIT_AS"))
    tightest = min(limits, key=lambda limit: limit.total)
    return MemoryLimit(
        tightest.total, min(limit.available for limit in limits), tightest.source)


def _meminfo(proc: Path) -> dict[str, int]:
    rows = (line.split() for line in (proc / "meminfo").read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) > 1}


def _cgroup_folders(proc: Path, cgroup: Path) -> list[Path]:
    """The group of this process and its parents, version 2 and the memory part of version 1."""
    folders = []
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = cgroup / "memory" if controllers else cgroup
        folder = root / path.lstrip("/")
        folders += [folder, *[parent for parent in folder.parents if root in parent.parents], root]
    return list(dict.fromkeys(folders)) or [cgroup, cgroup / "memory"]


def _cgroup_limits(folder: Path) -> list[MemoryLimit]:
    for limit_file, usage_file, cache_key in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with contextlib.suppress(OSError, ValueError):
            limit = int((folder / limit_file).read_text())
            if limit >= 1 << 60:     # version 1 writes a huge number for "no limit"
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
