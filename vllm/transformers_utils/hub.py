"""Turns what a user calls a model into a local path: folder, .gguf file, embedded name or hub id.

Decides what is downloaded: safetensors or GGUF weights, JSON and templates, never pickle files and
never code. Invariant: every file of a model comes from one revision (the hub client resolves a
branch to its commit once), and a failure is one line that says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from vllm.exceptions import ConfigError, ModelFileError
from vllm.transformers_utils.embedded import embedded_model, is_embedded_name

_TOKENIZER_PATTERNS = [
    "config.json", "tokenizer*.json", "special_tokens_map.json", "added_tokens.json",
    "chat_template*", "additional_chat_templates/*.jinja",
]  # fmt: skip
_MODEL_PATTERNS = ["*.safetensors", "*.json", "*.jinja"]
# Some repositories hold the weights a second time, in the format of the training code.
_IGNORED = ["consolidated*", "original/*", "*/*.safetensors", "*/*.json"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)?")
_HUB_FILE = re.compile(r"([A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*)/(.+\.gguf)")


def resolve_model(
    model: str | None,
    revision: str | None = None,
    download_dir: str | None = None,
    token: str | bool | None = None,
    *,
    ignore_patterns: Sequence[str] = (),
    show_progress: bool = True,
) -> str:
    """The local folder or .gguf file of `model`; None means the embedded demo model.

    Files of a hub repository that match `ignore_patterns` are not downloaded.
    """
    local = _local_path(model)
    if local is not None or model is None:
        return str(local)
    match = _HUB_FILE.fullmatch(model)
    repo_id = match[1] if match else _checked_id(model)
    hub = _Hub(repo_id, revision, download_dir, token, ignore_patterns, show_progress)
    return str(hub.gguf_file(match[2]) if match else hub.model_folder())


def resolve_tokenizer(
    tokenizer: str,
    revision: str | None = None,
    download_dir: str | None = None,
    token: str | bool | None = None,
) -> str:
    """Like `resolve_model`, but of a hub id only the tokenizer files are fetched."""
    local = _local_path(tokenizer)
    if local is not None:
        return str(local)
    hub = _Hub(_checked_id(tokenizer), revision, download_dir, token)
    return str(hub.snapshot(_TOKENIZER_PATTERNS))


def _local_path(model: str | None) -> Path | None:
    """The path if `model` names something on this machine."""
    if model is None:
        return embedded_model()
    path = Path(model).expanduser()
    if model and path.is_dir():
        return _gguf_in(path) or path
    if path.is_file():
        if path.suffix != ".gguf":
            raise ConfigError(f"{model}: a model is a folder or a .gguf file")
        return path
    if is_embedded_name(model):
        return embedded_model()
    return None


def _gguf_in(folder: Path) -> Path | None:
    """The only GGUF model of a folder without a config.json (the first part if it is split)."""
    if (folder / "config.json").is_file():
        return None
    first_parts = [
        file
        for file in sorted(folder.glob("*.gguf"))
        if not re.search(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", file.name)
    ]
    if len(first_parts) > 1:
        names = ", ".join(file.name for file in first_parts[:5])
        raise ConfigError(f"{folder} holds several GGUF models, pass one of them: {names}")
    return first_parts[0] if first_parts else None


def _checked_id(model: str) -> str:
    looks_local = model.startswith(("/", "./", "../", "~")) or model.endswith(".gguf")
    if looks_local or not _HUB_ID.fullmatch(model):
        raise ConfigError(f"{model}: no such folder or .gguf file, and not a Hugging Face id")
    return model


class _Hub:
    """One repository at one revision."""

    def __init__(
        self,
        repo_id: str,
        revision: str | None,
        download_dir: str | None,
        token: str | bool | None,
        ignore_patterns: Sequence[str] = (),
        show_progress: bool = True,
    ) -> None:
        self.repo_id = repo_id
        self._ignored = [*_IGNORED, *ignore_patterns]
        self._show_progress = show_progress
        self._options: dict[str, Any] = {
            "repo_id": repo_id,
            "revision": revision,
            "cache_dir": download_dir,
            "token": token,
        }

    def snapshot(self, patterns: list[str]) -> Path:
        """The local folder with the matching files."""
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils.tqdm import disable_progress_bars

        if not self._show_progress:
            disable_progress_bars()
        return Path(
            self._call(
                lambda: snapshot_download(
                    **self._options, allow_patterns=patterns, ignore_patterns=self._ignored
                )
            )
        )

    def gguf_file(self, name: str) -> Path:
        """One .gguf file; with its other parts if it is the first of several."""
        pattern = re.sub(r"-00001-of-(\d{5})\.gguf$", r"-*-of-\1.gguf", name)
        folder = self.snapshot([pattern])
        if not (folder / name).is_file():
            raise ConfigError(f"{self.repo_id} has no file {name}")
        return folder / name

    def model_folder(self) -> Path:
        """The folder with weights and everything around them."""
        folder = self.snapshot(_MODEL_PATTERNS)
        if any(folder.glob("*.safetensors")):
            return folder
        # The folder is named after the commit, so that this listing is of the same revision.
        names = self._list_files(folder.name)
        first_parts = [
            n for n in names if re.search(r"(?<!-of-\d{5})\.gguf$|-00001-of-\d{5}\.gguf$", n)
        ]
        if len(first_parts) == 1:
            return self.gguf_file(first_parts[0])
        if first_parts:
            choices = ", ".join(f"{self.repo_id}/{n}" for n in first_parts[:5])
            raise ConfigError(f"{self.repo_id} holds several GGUF models, pass one: {choices}")
        if any(n.endswith((".bin", ".pt", ".pth")) for n in names):
            raise ModelFileError(
                f"{self.repo_id}: pickle weights are not supported; convert to safetensors"
            )
        raise ModelFileError(f"{self.repo_id}: no .safetensors or .gguf file in this repository")

    def _list_files(self, commit: str) -> list[str]:
        from huggingface_hub import HfApi

        api = HfApi(token=self._options["token"])
        names: list[str] = self._call(lambda: api.list_repo_files(self.repo_id, revision=commit))
        return names

    def _call(self, request: Callable[[], Any]) -> Any:
        try:
            return request()
        except Exception as error:
            # The client raises from three libraries; all of it means: no model, say why.
            self._refuse(error)

    def _refuse(self, error: Exception) -> NoReturn:
        from huggingface_hub import constants, errors

        where = f"{constants.ENDPOINT}/{self.repo_id}"
        revision = self._options["revision"]
        at_revision = f" at revision {revision}" if revision else ""
        if isinstance(error, errors.GatedRepoError):
            reason = f"access is gated: accept the terms at {where} and set HF_TOKEN"
        elif isinstance(error, errors.RepositoryNotFoundError):
            reason = f"not found at {where}; if it is private, set HF_TOKEN"
        elif isinstance(error, errors.RevisionNotFoundError):
            reason = f"revision {revision} does not exist at {where}"
        elif isinstance(error, errors.HFValidationError):
            reason = "not a valid Hugging Face id"
        elif constants.HF_HUB_OFFLINE:
            reason = f"not in the local cache{at_revision}, and HF_HUB_OFFLINE is set"
        else:
            first_line = str(error).strip().split("\n", 1)[0][:200]
            reason = f"download failed{at_revision} ({type(error).__name__}: {first_line})"
        raise ConfigError(f"model {self.repo_id}: {reason}") from error
