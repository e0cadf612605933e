"""Which CPUs the compute threads use: the affinity mask, cut to the cgroup's quota."""

import contextlib
import math
import os
from pathlib import Path

from vllm.exceptions import ConfigError
from vllm.utils.cgroup import CGROUP, PROC, cgroup_folders


def compute_cpus(
    bind: str, num_reserved: int | None, proc: Path = PROC, cgroup: Path = CGROUP
) -> tuple[int, tuple[int, ...]]:
    """(number of threads, CPUs to pin them to; empty if they are not pinned).

    `bind` is auto, nobind, or CPUs as `0-3`, `0,2` (one list per rank, split by `|`; this engine
    has one rank). Raises ConfigError.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if bind.strip().lower() in ("auto", "nobind", ""):
        quotas = [_quota(folder) for folder in cgroup_folders("cpu", proc, cgroup)]
        count = min([len(allowed), *(max(1, math.floor(q)) for q in quotas if q is not None)])
        return max(1, count - (num_reserved or 0)), ()
    cpus = parse_cpus(bind.split("|")[0])
    missing = sorted(set(cpus) - set(allowed))
    if missing:
        raise ConfigError(
            f"VLLM_CPU_OMP_THREADS_BIND is {bind!r}, but CPU {missing[0]} is not available to "
            f"this process; it may use {format_cpus(allowed)}.")
    return len(cpus), tuple(cpus)


def parse_cpus(text: str) -> list[int]:
    """`0-2,4` -> [0, 1, 2, 4]."""
    cpus: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            begin, end = int(first), int(last if dash else first)
        except ValueError:
            begin, end = 1, 0
        if not 0 <= begin <= end:
            raise ConfigError(f"VLLM_CPU_OMP_THREADS_BIND is {text!r}; it must be auto, nobind, "
                              "or CPU numbers such as 0-3 or 0,2.")
        cpus += range(begin, end + 1)
    return list(dict.fromkeys(cpus))


def format_cpus(cpus: list[int]) -> str:
    """[0, 1, 2, 4] -> `0-2,4`."""
    spans: list[list[int]] = []
    for cpu in cpus:
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _quota(folder: Path) -> float | None:
    """CPUs that a cgroup grants, version 2 then version 1; None without a quota."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        granted = int((folder / "cpu.cfs_quota_us").read_text())
        period_us = int((folder / "cpu.cfs_period_us").read_text())
        return granted / period_us if granted > 0 else None
    return None
