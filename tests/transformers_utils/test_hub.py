"""Downloads by the real hub client, in a process of its own, from a hub on loopback."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.transformers_utils.fake_hub import FakeHub, Repo
from vllm.exceptions import ConfigError
from vllm.transformers_utils.hub import resolve_model, resolve_tokenizer

OLD, NEW = "a" * 40, "b" * 40
TOKEN = "hf_secret"
CALL = """
import sys
from vllm.exceptions import ConfigError
from vllm.transformers_utils.hub import {function}
try:
    print({function}({arguments}))
except ConfigError as error:
    print(error)
    sys.exit(1)
"""


def files(mark: str) -> dict[str, bytes]:
    return {
        "config.json": b'{"mark": "%s"}' % mark.encode(),
        "model.safetensors": mark.encode() * 1000,
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
        "generation_config.json": b"{}",
        "pytorch_model.bin": b"pickle",
        "modeling_evil.py": b"raise SystemExit",
        "README.md": b"# readme",
        "consolidated.safetensors": b"twice",
        "original/params.json": b"{}",
        "onnx/config.json": b"{}",
    }


def only(*names: str) -> dict[str, bytes]:
    return {"config.json": b"{}", **{name: name.encode() for name in names}}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    repos = {
        "org/model": Repo(
            {OLD: files("old"), NEW: files("new")}, {"main": NEW, "v1": OLD}
        ),
        "org/gated": Repo({NEW: files("new")}, {"main": NEW}, gated=True),
        "org/pickle": Repo({NEW: only("pytorch_model.bin")}, {"main": NEW}),
        "org/gguf": Repo({NEW: only("m-Q4_0.gguf", "m-Q8_0.gguf")}, {"main": NEW}),
        "org/one-gguf": Repo({NEW: only("m-Q4_0.gguf")}, {"main": NEW}),
        "org/split": Repo(
            {NEW: only("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")}, {"main": NEW}
        ),
        "org/empty": Repo({NEW: only()}, {"main": NEW}),
    }  # fmt: skip
    with FakeHub(repos) as server:
        yield server


def call(
    hub: FakeHub, home: Path, arguments: str, function: str = "resolve_model", **env: str
) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    return subprocess.run(
        [sys.executable, "-c", CALL.format(function=function, arguments=arguments)],
        env={**clean, "HF_HOME": str(home), "HF_ENDPOINT": hub.url, **env},
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip


def folder_of(run: subprocess.CompletedProcess[str]) -> Path:
    assert run.returncode == 0, run.stdout + run.stderr
    return Path(run.stdout.strip())


def test_every_file_comes_from_the_pinned_revision(hub: FakeHub, tmp_path: Path) -> None:
    folder = folder_of(call(hub, tmp_path, "'org/model', revision='v1'", HF_TOKEN=TOKEN))
    assert {p.name for p in folder.iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja", "generation_config.json",
    }  # fmt: skip
    assert (folder / "model.safetensors").read_bytes() == b"old" * 1000
    assert hub.paths()[0] == "/api/models/org/model/revision/v1"
    for path in hub.paths()[1:]:
        assert OLD in path
        assert NEW not in path
    assert not hub.paths(".bin") and not hub.paths(".py") and not hub.paths("consolidated")


def test_the_token_goes_to_the_hub_alone(hub: FakeHub, tmp_path: Path) -> None:
    folder_of(call(hub, tmp_path, "'org/model'", HF_TOKEN=TOKEN))
    assert hub.tokens("hub") == {f"Bearer {TOKEN}"}
    assert hub.tokens("storage") == {None}


def test_a_token_argument_is_used(hub: FakeHub, tmp_path: Path) -> None:
    folder_of(call(hub, tmp_path, f"'org/gated', token={TOKEN!r}"))
    assert hub.tokens("hub") == {f"Bearer {TOKEN}"}


def test_progress_is_shown(hub: FakeHub, tmp_path: Path) -> None:
    run = call(hub, tmp_path, "'org/model'")
    assert "100%" in run.stderr and "6/6" in run.stderr


def test_files_can_be_left_out_and_the_progress_too(hub: FakeHub, tmp_path: Path) -> None:
    arguments = "'org/model', ignore_patterns=['*.jinja', 'gen*'], show_progress=False"
    run = call(hub, tmp_path, arguments)
    assert {p.name for p in folder_of(run).iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"
    }  # fmt: skip
    assert "%" not in run.stderr


def test_download_dir_and_cache(hub: FakeHub, tmp_path: Path) -> None:
    place = tmp_path / "models"
    arguments = f"'org/model', download_dir={str(place)!r}"
    folder = folder_of(call(hub, tmp_path / "home", arguments))
    assert folder.is_relative_to(place)
    num_asked = len(hub.paths("/resolve/"))
    assert num_asked
    assert folder_of(call(hub, tmp_path / "home", arguments)) == folder
    assert len(hub.paths("/resolve/")) == num_asked  # nothing is fetched twice
    count = len(hub.asked)
    assert folder_of(call(hub, tmp_path / "home", arguments, HF_HUB_OFFLINE="1")) == folder
    assert len(hub.asked) == count


def test_tokenizer_files_alone(hub: FakeHub, tmp_path: Path) -> None:
    folder = folder_of(call(hub, tmp_path, "'org/model', 'v1'", "resolve_tokenizer"))
    assert {p.name for p in folder.iterdir()} == {
        "config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
    }  # fmt: skip
    assert all(OLD in path for path in hub.paths("/resolve/"))


def test_gguf_repositories(hub: FakeHub, tmp_path: Path) -> None:
    file = folder_of(call(hub, tmp_path, "'org/gguf/m-Q8_0.gguf'"))
    assert file.name == "m-Q8_0.gguf" and file.read_bytes() == b"m-Q8_0.gguf"
    assert not hub.paths("Q4_0")
    assert folder_of(call(hub, tmp_path, "'org/one-gguf'")).name == "m-Q4_0.gguf"
    first = folder_of(call(hub, tmp_path, "'org/split'"))
    assert first.name == "m-00001-of-00002.gguf"
    assert (first.parent / "m-00002-of-00002.gguf").is_file()


FAILURES = {
    "unknown": ("'org/nothing'", {}, "model org/nothing: not found at {hub}/org/nothing; if it is"),
    "gated": ("'org/gated'", {}, "access is gated: accept the terms at {hub}/org/gated and set HF"),
    "revision": ("'org/model', 'v9'", {}, "revision v9 does not exist at {hub}/org/model"),
    "offline": ("'org/model'", {"HF_HUB_OFFLINE": "1"}, "not in the local cache, and HF_HUB_OFF"),
    "network": ("'org/model'", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "download failed ("),
    "pickle": ("'org/pickle'", {}, "org/pickle: pickle weights are not supported; convert to safe"),
    "several": ("'org/gguf'", {}, "pass one: org/gguf/m-Q4_0.gguf, org/gguf/m-Q8_0.gguf"),
    "no weights": ("'org/empty'", {}, "org/empty: no .safetensors or .gguf file in this repos"),
    "no such file": ("'org/gguf/x.gguf'", {}, "org/gguf has no file x.gguf"),
    "not an id": ("'org/a..b'", {}, "model org/a..b: not a valid Hugging Face id"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures_are_one_line(name: str, hub: FakeHub, tmp_path: Path) -> None:
    arguments, env, expected = FAILURES[name]
    run = call(hub, tmp_path, arguments, **env)
    assert run.returncode == 1, run.stderr
    assert expected.format(hub=hub.url) in run.stdout
    assert run.stdout.count("\n") == 1
    assert TOKEN not in run.stdout


def test_local_names(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    assert resolve_model(str(tmp_path / "m.gguf")) == str(tmp_path / "m.gguf")
    assert resolve_model(str(tmp_path)) == str(tmp_path / "m.gguf")
    (tmp_path / "n.gguf").touch()
    with pytest.raises(ConfigError, match=r"holds several GGUF models, pass one of them: m.gguf,"):
        resolve_model(str(tmp_path))
    (tmp_path / "config.json").touch()
    assert resolve_model(str(tmp_path)) == str(tmp_path)
    assert resolve_tokenizer(str(tmp_path)) == str(tmp_path)
    with pytest.raises(ConfigError, match=r"a model is a folder or a \.gguf file"):
        resolve_model(str(tmp_path / "config.json"))


def test_the_first_part_stands_for_a_split_model(tmp_path: Path) -> None:
    for i in (1, 2, 3):
        (tmp_path / f"m-{i:05d}-of-00003.gguf").touch()
    assert resolve_model(str(tmp_path)) == str(tmp_path / "m-00001-of-00003.gguf")


@pytest.mark.parametrize("name", ["./nope", "/nope", "~/nope", "a b", "x.gguf", "a/b/c", ""])
def test_names_that_mean_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match=r"no such folder or \.gguf file, and not a Hugging Face"):
        resolve_model(name)
