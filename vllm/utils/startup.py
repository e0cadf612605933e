"""Where the time between the start of the process and "ready" goes.

The phases follow each other in the main process, so their seconds add up to the wall time. What the
engine process did meanwhile is shown beside them, not added.
"""

import os
import time
from collections.abc import Mapping


def seconds_since_process_start() -> float:
    """Age of this process; exact to a clock tick (10 ms). 0 where the system does not tell."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


class StartupTimer:
    """Phases of a start. Each `end_phase` names what was done since the one before."""

    def __init__(self) -> None:
        age = seconds_since_process_start()
        self._last = time.perf_counter()
        self.phases: dict[str, float] = {"start Python, import": age}

    def end_phase(self, name: str) -> None:
        """The time since the last call was spent on `name`."""
        now = time.perf_counter()
        self.phases[name] = self.phases.get(name, 0.0) + now - self._last
        self._last = now

    @property
    def total_s(self) -> float:
        """Seconds from the start of the process to the last phase's end."""
        return sum(self.phases.values())

    def lines(self, engine: Mapping[str, float]) -> list[str]:
        """The table: two short lines, the main process and the engine process beside it."""
        return [
            f"Start-up took {self.total_s:.2f} s: {_row(self.phases)}",
            f"  meanwhile the engine process: {_row(engine)}",
        ]


def _row(phases: Mapping[str, float]) -> str:
    return " | ".join(f"{name} {seconds:.2f}" for name, seconds in phases.items())
