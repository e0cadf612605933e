"""Builds a tokenizer from a model folder: tokenizer.json and the settings around it.

Decides which file wins where several speak, in the way Transformers does: tokenizer.json holds the
algorithm and usually the tokens around a text, tokenizer_config.json (then special_tokens_map.json)
the special tokens. Invariant: code that a folder names (`auto_map`) is never loaded.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.exceptions import ModelFileError
from vllm.transformers_utils.files import (
    parse_json_object,
    read_bytes,
    read_json,
    read_text,
    shown,
)
from vllm.transformers_utils.tokenizer import TokenizerInfo

if TYPE_CHECKING:
    import tokenizers

_NAMED = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
_PROBE = "a \u4e16\U0010ffff"
"""An encoding of it fails if the vocabulary lacks its own unknown token."""
_PREFIX_KEY = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')
_ESCAPE = rb"\u00"
_LETTERS = {b"%02x" % code for code in b"_abcdefghijklmnopqrstuvwxyz"}
_MAX_TEMPLATE_BYTES = 1 << 20
_MAX_TOKENIZER_BYTES = 1 << 28
_HIGHEST_LENGTH = 1 << 30


def load_hf_tokenizer(folder: Path) -> tuple[tokenizers.Tokenizer, TokenizerInfo]:
    """The backend and its settings, or the refusal that says which file is missing or wrong."""
    backend = _read_backend(folder)
    config = _optional_json(folder / "tokenizer_config.json")
    special = _special_tokens(folder, config)
    _add_missing_tokens(backend, config, special)
    _set_frame(backend, config, special)
    info = TokenizerInfo(
        source=str(folder),
        special_tokens_map=special,
        chat_templates=_chat_templates(folder, config),
        model_max_length=_max_length(config),
    )
    return backend, info


def set_frame(
    backend: tokenizers.Tokenizer, before: tuple[str, int] | None, after: tuple[str, int] | None
) -> None:
    """Let `add_special_tokens` put the token `before` and the token `after` around a text."""
    from tokenizers.processors import TemplateProcessing

    tokens = [token for token in (before, after) if token is not None]
    left = [f"{before[0]}:0"] if before is not None else []
    right = [f"{after[0]}:0"] if after is not None else []
    backend.post_processor = TemplateProcessing(
        single=[*left, "$A:0", *right],
        pair=[*left, "$A:0", *right, "$B:1"],
        special_tokens=tokens,
    )


def _read_backend(folder: Path) -> tokenizers.Tokenizer:
    import tokenizers

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ModelFileError(f"{folder}: {_why_missing(folder)}")
    data = read_bytes(file, _MAX_TOKENIZER_BYTES)
    _refuse_prefix_crash(data, str(file))
    try:
        backend = tokenizers.Tokenizer.from_buffer(data)
        backend.no_padding()
        backend.no_truncation()
        backend.encode(_PROBE)
    except Exception as error:  # the library raises nothing more specific
        raise ModelFileError(f"{file}: not a usable tokenizer: {shown(str(error), 200)}") from None
    return backend


def _refuse_prefix_crash(data: bytes, source: str) -> None:
    """Merges that don't begin with the stated prefix abort the process inside the library.

    Whole files take a quarter of a second to parse here, so that is done only if the key is set or
    may hide behind an escaped letter.
    """
    if not _PREFIX_KEY.search(data) and not _escapes_a_letter(data):
        return
    model = parse_json_object(data.decode("utf-8", "replace"), source).get("model")
    prefix = model.get("continuing_subword_prefix") if isinstance(model, dict) else None
    merges = model.get("merges") if isinstance(model, dict) else None
    for merge in merges if prefix and isinstance(merges, list) else ():
        parts = merge.split(" ") if isinstance(merge, str) else merge
        right = parts[-1] if isinstance(parts, list) and parts else ""
        if not str(right).startswith(str(prefix)):
            raise ModelFileError(
                f"{source}: model.continuing_subword_prefix {shown(prefix)} does not begin "
                f"{shown(right)} of the merges"
            )


def _escapes_a_letter(data: bytes) -> bool:
    """Whether a JSON escape spells an ASCII letter or underscore, which no honest writer does."""
    position = data.find(_ESCAPE)
    while position >= 0:
        if data[position + 4 : position + 6].lower() in _LETTERS:
            return True
        position = data.find(_ESCAPE, position + 1)
    return False


def _why_missing(folder: Path) -> str:
    for name in ("tokenizer.model", "tekken.json", "vocab.json", "tiktoken.model"):
        if (folder / name).is_file():
            return (
                f"no tokenizer.json here, and {name} alone is not supported; "
                "convert it with Transformers (save_pretrained of the fast tokenizer)"
            )
    return "no tokenizer.json here; pass --tokenizer or --skip-tokenizer-init"


def _optional_json(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def _special_tokens(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    fallback = _optional_json(folder / "special_tokens_map.json")
    special = {}
    for name in _NAMED:
        value = config.get(name, fallback.get(name))
        text = value.get("content") if isinstance(value, dict) else value
        if text is None:
            continue
        if not isinstance(text, str):
            raise ModelFileError(f"{folder}: {name} must be a string, not {shown(value)}")
        special[name] = text
    extra = config.get("extra_special_tokens")
    if isinstance(extra, dict):  # names that templates may use, like "image_token"
        special |= {name: text for name, text in extra.items() if isinstance(text, str)}
    return special


def _add_missing_tokens(
    backend: tokenizers.Tokenizer, config: dict[str, Any], special: dict[str, str]
) -> None:
    """Tokens that only the config knows, and the special mark on those that it names."""
    from tokenizers import AddedToken

    known = backend.get_added_tokens_decoder()
    contents = {token.content for token in known.values()}
    backend.add_tokens([t for t in _listed_tokens(config, known) if t.content not in contents])
    is_special = {t.content for t in backend.get_added_tokens_decoder().values() if t.special}
    named = [*special.values(), *_extra_special(config)]
    missing = [text for text in dict.fromkeys(named) if text and text not in is_special]
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in missing])


def _listed_tokens(config: dict[str, Any], known: dict[int, Any]) -> list[Any]:
    """`added_tokens_decoder` entries that tokenizer.json lacks, in the order of their ids."""
    from tokenizers import AddedToken

    listed = config.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        return []
    by_id = {int(key): entry for key, entry in listed.items() if key.isdecimal()}
    tokens = []
    for token_id, entry in sorted(by_id.items()):
        content = entry.get("content") if isinstance(entry, dict) else None
        if isinstance(content, str) and token_id not in known:
            flags = {
                name: bool(entry.get(name, False))
                for name in ("single_word", "lstrip", "rstrip", "normalized", "special")
            }
            tokens.append(AddedToken(content, **flags))
    return tokens


def _extra_special(config: dict[str, Any]) -> list[str]:
    extra: list[Any] = []
    for name in ("additional_special_tokens", "extra_special_tokens"):
        value = config.get(name)
        if isinstance(value, dict):
            extra += value.values()
        elif isinstance(value, list):
            extra += value
    texts = [t.get("content") if isinstance(t, dict) else t for t in extra]
    return [t for t in texts if isinstance(t, str)]


def _set_frame(
    backend: tokenizers.Tokenizer, config: dict[str, Any], special: dict[str, str]
) -> None:
    """`add_bos_token` / `add_eos_token` count if tokenizer.json doesn't say what to add."""
    if _frames_text(backend) or not (config.get("add_bos_token") or config.get("add_eos_token")):
        return
    frame = []
    for flag, name in (("add_bos_token", "bos_token"), ("add_eos_token", "eos_token")):
        text = special.get(name) if config.get(flag) else None
        token_id = None if text is None else backend.token_to_id(text)
        frame.append(None if text is None or token_id is None else (text, token_id))
    set_frame(backend, frame[0], frame[1])


def _frames_text(backend: tokenizers.Tokenizer) -> bool:
    """Whether tokenizer.json itself puts tokens around a text."""
    if backend.post_processor is None:
        return False
    state = json.loads(backend.post_processor.__getstate__())
    steps = state["processors"] if state["type"] == "Sequence" else [state]
    return any(step["type"] != "ByteLevel" for step in steps)


def _chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    templates = _named_templates(config.get("chat_template"), str(folder / "tokenizer_config.json"))
    beside = folder / "chat_template.json"
    if beside.is_file():
        templates |= _named_templates(read_json(beside).get("chat_template"), str(beside))
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        templates["default"] = read_text(jinja, _MAX_TEMPLATE_BYTES)
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = read_text(file, _MAX_TEMPLATE_BYTES)
    return templates


def _named_templates(value: Any, source: str) -> dict[str, str]:
    """One template, or a list of {"name": ..., "template": ...}."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        templates = {str(entry["name"]): entry["template"] for entry in value}
    except (TypeError, KeyError):
        raise ModelFileError(f"{source}: chat_template is neither text nor a list") from None
    if not all(isinstance(t, str) for t in templates.values()):
        raise ModelFileError(f"{source}: chat_template entries must be text")
    return templates


def _max_length(config: dict[str, Any]) -> int | None:
    value = config.get("model_max_length")
    # Transformers writes 1e30 for "no limit".
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 < value <= _HIGHEST_LENGTH else None
