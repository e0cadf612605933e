"""The NEON kernels: cross-compiled, and run by an emulator, where both tools are installed.

On Debian: apt-get install g++-aarch64-linux-gnu qemu-user
"""

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
ROOT = Path(__file__).parents[2]
# As in csrc/CMakeLists.txt, but for -O1: it takes half the time.
FLAGS = [
    "-std=c++17",
    "-O1",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-psabi",
    "-ffp-contract=off",
    "-Icsrc/cpu",
]
ISAS = {"neon": [], "neon_dot": ["-march=armv8.2-a+dotprod"]}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which(COMPILER) is None or shutil.which(EMULATOR) is None,
        reason=f"needs {COMPILER} and {EMULATOR}",
    ),
]


def kernel_sources() -> list[str]:
    """The sources that are compiled once per ISA, as the build lists them."""
    text = (ROOT / "csrc/CMakeLists.txt").read_text()
    found = re.search(r"set\(KERNEL_SOURCES\s+([^)]*)\)", text)
    assert found is not None
    return [f"csrc/{name}" for name in found.group(1).split()]


def compile_object(source: str, isa: str, folder: Path) -> Path:
    out = folder / f"{isa}.{Path(source).stem}.o"
    define = [f"-DVLLM_ISA=isa_{isa}", f'-DVLLM_ISA_NAME="{isa}"', *ISAS[isa]]
    launcher = ["ccache"] if shutil.which("ccache") else []
    command = [*launcher, COMPILER, *FLAGS, *define, "-c", source, "-o", str(out)]
    subprocess.run(command, cwd=ROOT, check=True)
    return out


def test_kernels_under_emulation(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(compile_object, source, isa, tmp_path)
            for isa in ISAS
            for source in kernel_sources()
        ]
        objects = [str(job.result()) for job in jobs]
    program = str(tmp_path / "kernel_check")
    sources = ["csrc/cpu/dispatch.cpp", "tests/kernels/kernel_check.cpp"]
    link = [COMPILER, *FLAGS, "-static", *sources, *objects, "-o", program]
    subprocess.run(link, cwd=ROOT, check=True)
    done = subprocess.run([EMULATOR, program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines() == ["neon_dot: 0 failures", "neon: 0 failures"]
