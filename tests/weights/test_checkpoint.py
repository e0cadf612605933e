"""Which reader a path gets, and what is refused without being opened."""

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.transformers_utils.gguf_builder import tiny_llama
from vllm.exceptions import ConfigError, ModelFileError
from vllm.model_executor.weights import open_checkpoint


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return Path.touch, (self.canary,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.pt", "model.pth"])
def test_pickle_weights_are_refused_unopened(name: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (tmp_path / name).write_bytes(pickle.dumps(Bomb(canary)))
    with pytest.raises(ModelFileError, match="pickle weights are not supported; convert to safet"):
        open_checkpoint(tmp_path)
    assert not canary.exists()


def test_pickle_beside_safetensors_is_ignored(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(canary)))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert open_checkpoint(tmp_path).names() == ["x"]
    assert not canary.exists()


def test_formats(tmp_path: Path) -> None:
    file = tiny_llama(1).write(tmp_path / "m.gguf")
    assert "model.norm.weight" in open_checkpoint(file, "gguf")
    with pytest.raises(ConfigError, match="is a GGUF file, but --load-format is safetensors"):
        open_checkpoint(file, "safetensors")
    with pytest.raises(ConfigError, match=r"pass the .gguf file itself"):
        open_checkpoint(tmp_path, "gguf")
    with pytest.raises(ModelFileError, match=r"pass the .gguf file itself"):
        open_checkpoint(tmp_path)
    with pytest.raises(ConfigError, match="--load-format pt is not supported"):
        open_checkpoint(tmp_path, "pt")
    with pytest.raises(ModelFileError, match=r"neither a model folder nor a .gguf file"):
        open_checkpoint(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFileError, match=r"no .safetensors file here"):
        open_checkpoint(tmp_path / "empty")
