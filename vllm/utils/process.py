"""How a process of the engine presents itself and when it must end."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15


def set_process_title(title: str) -> None:
    """Show `title` in ps and top; does nothing where the system has no way to."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_NAME, title.encode()[:15], 0, 0, 0)
    try:
        with open("/proc/self/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return
    # Fields 48 and 49 of the file; the state after the name is field 3.
    start, end = int(fields[45]), int(fields[46])
    if start and end - start > len(title):
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, title.encode(), min(len(title), end - start - 1))


def stay_until_parent_dies(on_orphaned: Callable[[], None]) -> None:
    """Ignore Ctrl-C and SIGTERM, which reach a whole process group, while the parent lives.

    The parent alone decides when its children end. On Linux the kernel sends SIGTERM when the
    parent dies; it also does when only the parent's *thread* that started us ends, so the handler
    looks at the parent before it believes it.
    """
    parent = os.getppid()

    def on_sigterm(signum: int, frame: object) -> None:
        if os.getppid() != parent:
            on_orphaned()

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, on_sigterm)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
