"""The thread pool: settings, turns, forks, and an orderly exit."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from vllm.kernels import native


def work(rows: int = 64) -> np.ndarray:
    return native.argmax(np.eye(rows, dtype=np.float32))


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="num_threads is 0"):
        native.set_num_threads(0)
    with pytest.raises(ValueError, match="num_threads is 5000"):
        native.set_num_threads(5000)
    with pytest.raises(ValueError, match="cpus has 1 entries for 2 threads"):
        native.set_num_threads(2, [0])
    with pytest.raises(ValueError, match="cpu 100000"):
        native.set_num_threads(1, [100000])
    assert native.num_threads() == 1


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_any_number_of_threads(threads: int) -> None:
    native.set_num_threads(threads)
    assert native.num_threads() == threads
    for _ in range(50):
        np.testing.assert_array_equal(work(), np.arange(64))


def test_threads_can_be_pinned() -> None:
    cpu = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    native.set_num_threads(3, [cpu] * 3)
    np.testing.assert_array_equal(work(), np.arange(64))
    assert os.sched_getaffinity(0) == before


def test_sleeping_threads_wake_up() -> None:
    native.set_num_threads(2)
    for _ in range(20):
        work()
        time.sleep(0.002)
    np.testing.assert_array_equal(work(), np.arange(64))


def test_waiting_threads_use_no_cpu() -> None:
    native.set_num_threads(4)
    work()
    time.sleep(0.01)
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.05


def test_python_threads_take_turns() -> None:
    native.set_num_threads(2)
    results: list[bool] = []

    def caller() -> None:
        results.append(all((work(32) == np.arange(32)).all() for _ in range(100)))

    callers = [threading.Thread(target=caller) for _ in range(4)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert results == [True] * 4


def test_the_pool_can_be_replaced_while_it_works() -> None:
    native.set_num_threads(2)
    stop = threading.Event()
    failures: list[str] = []

    def caller() -> None:
        while not stop.is_set():
            if (work(32) != np.arange(32)).any():
                failures.append("wrong result")

    thread = threading.Thread(target=caller)
    thread.start()
    for threads in [1, 3, 2, 1, 4] * 5:
        native.set_num_threads(threads)
    stop.set()
    thread.join()
    assert not failures


@pytest.mark.parametrize("busy", [False, True])
def test_a_forked_child_gets_threads_of_its_own(busy: bool) -> None:
    native.set_num_threads(2)
    work()
    stop = threading.Event()
    others = [threading.Thread(target=lambda: [work() for _ in iter(stop.is_set, True)])]
    if busy:
        others[0].start()
    for _ in range(5):
        child = os.fork()
        if child == 0:
            right = native.num_threads() == 2 and (work() == np.arange(64)).all()
            os._exit(0 if right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stop.set()
    if busy:
        others[0].join()
    np.testing.assert_array_equal(work(), np.arange(64))


SCRIPT = """
import threading, time
import numpy as np
from vllm.kernels import native
native.set_num_threads(3)
x = np.eye(64, dtype=np.float32)
native.argmax(x)
if {daemon}:
    def forever():
        while True:
            native.argmax(x)
    threading.Thread(target=forever, daemon=True).start()
    time.sleep(0.05)
print("bye")
"""


@pytest.mark.parametrize("daemon", [False, True])
def test_the_interpreter_exits_cleanly(daemon: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(daemon=daemon)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "bye\n", "")
