"""Plugins as installed packages: found, filtered, called once, and harmless when they fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENTRY_POINTS = """\
[console_scripts]
x = y:z

[vllm.general_plugins]
good = myplugin:register
bad = myplugin:explode
gone = nosuchmodule:register

[vllm.platform_plugins]
mine = myplugin:detect

[vllm.logits_processors]
one = myplugin:Processor
"""

MODULE = """\
from vllm.platforms.cpu import CpuPlatform
def register(): print("registered")
def explode(): raise RuntimeError("boom")
def detect(): return "myplugin:MyPlatform" if WANTED else None
WANTED = False
class MyPlatform(CpuPlatform):
    device_type = "mine"
class Processor: pass
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "myplugin.py").write_text(MODULE)
    info = tmp_path / "myplugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: myplugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return tmp_path


def run(site: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    keep = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
    return subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False,
                          env=keep | variables | {"PYTHONPATH": str(site)})


LOAD = "from vllm.plugins import load_general_plugins as f; f(); f(); print('done')"


def test_general_plugins_are_called_once_and_failures_are_logged(site: Path) -> None:
    result = run(site, LOAD)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines.count("registered") == 1 and lines[-1] == "done"
    assert "The plugin bad failed and is left out" in result.stdout
    assert "The plugin gone (nosuchmodule:register) can't be loaded" in result.stdout


@pytest.mark.parametrize(("names", "called"), [
    ("good", True), ("good,other", True), ("other", False), ("", False)])
def test_the_variable_names_the_plugins_that_may(site: Path, names: str, called: bool) -> None:
    result = run(site, LOAD, VLLM_PLUGINS=names)
    assert ("registered" in result.stdout) is called
    assert "bad" not in result.stdout


def test_groups_can_be_asked_for(site: Path) -> None:
    code = "from vllm.plugins import load_group as g; print(g('vllm.logits_processors'), g('x'))"
    assert run(site, code).stdout.strip() == "{'one': <class 'myplugin.Processor'>} {}"


def test_a_platform_plugin_decides_when_it_wants_the_machine(site: Path) -> None:
    code = ("from vllm.platforms import current_platform as p;"
            "print(p.device_type, p.is_cpu(), p.is_out_of_tree())")
    assert run(site, code).stdout.strip() == "cpu True False"
    module = site / "myplugin.py"
    module.write_text(MODULE.replace("WANTED = False", "WANTED = True"))
    assert run(site, code).stdout.strip() == "mine False True"
    assert run(site, code, VLLM_PLUGINS="").stdout.strip() == "cpu True False"
    points = site / "myplugin-1.0.dist-info/entry_points.txt"
    points.write_text(ENTRY_POINTS.replace(
        "mine = myplugin:detect", "mine = myplugin:detect\nother = myplugin:detect"))
    result = run(site, code)
    assert "Several platform plugins want this machine (mine, other)" in result.stderr


def test_without_plugins_the_package_metadata_is_not_read(tmp_path: Path) -> None:
    code = ("import sys; from vllm.plugins import load_general_plugins as f; f();"
            "print('importlib.metadata' in sys.modules)")
    assert run(tmp_path, code).stdout.strip() == "False"


def test_plugins_are_loaded_before_a_model_is_resolved(site: Path) -> None:
    code = ("from vllm import EngineArgs\n"
            "try: EngineArgs('/no/such').create_engine_config()\n"
            "except Exception as e: print(e)")
    lines = run(site, code, VLLM_PLUGINS="good").stdout.splitlines()
    assert lines[0] == "registered" and "/no/such" in lines[-1]
