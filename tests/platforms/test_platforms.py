"""What machine this is: the CPU's facts, the empty platform, a platform that a plugin brings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm.platforms import EmptyPlatform, Platform, current_platform
from vllm.platforms.cpu import CpuPlatform, _processor_name
from vllm.utils.memory import MemoryLimit


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], env=os.environ | variables, text=True,
                          capture_output=True, check=False)


def test_this_machine_is_a_cpu() -> None:
    assert isinstance(current_platform, CpuPlatform)
    kinds = [current_platform.is_cpu(), current_platform.is_cuda(), current_platform.is_rocm(),
             current_platform.is_xpu(), current_platform.is_tpu(), current_platform.is_cuda_alike(),
             current_platform.is_out_of_tree()]
    assert kinds == [True, False, False, False, False, False, False]
    count, cpus = current_platform.compute_cpus()
    assert 1 <= count <= len(os.sched_getaffinity(0)) and cpus == ()
    limit = current_platform.memory_limit()
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < limit.available <= limit.total <= physical


@pytest.mark.parametrize(("text", "name"), [
    ("processor : 0\nmodel name\t: AMD EPYC 9R14\nflags : a\n\nmodel name\t: other\n",
     "AMD EPYC 9R14"),
    ("processor : 0\nBogoMIPS : 1\nHardware : Raspberry Pi\n", "Raspberry Pi"), ("", "")])
def test_name_of_the_processor(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert _processor_name(tmp_path / "cpuinfo") == name


def test_empty_platform_is_the_same_everywhere() -> None:
    platform = EmptyPlatform()
    assert not platform.is_cpu() and platform.device_type == "empty"
    assert platform.compute_cpus() == (1, ())
    assert platform.memory_limit() == MemoryLimit(1 << 30, 1 << 30, "empty platform")
    code = "from vllm.platforms import current_platform as p; print(type(p).__name__)"
    assert run(code, VLLM_TARGET_DEVICE="empty").stdout.strip() == "EmptyPlatform"


def test_platforms_are_not_resolved_by_importing_the_package() -> None:
    code = "import sys, vllm.platforms; print('vllm.platforms.cpu' in sys.modules)"
    assert run(code).stdout.strip() == "False"


def test_a_platform_names_its_three_facts() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Platform()  # type: ignore[abstract]
