"""Puts the chunks of a stream together, as a client would."""

import json
from typing import Any


def events(body: str) -> list[Any]:
    """The data of every event; checks the frame around it."""
    parts = body.split("\n\n")
    assert parts[-1] == ""
    assert all(part.startswith("data: ") for part in parts[:-1]), body[:300]
    assert parts[-2] == "data: [DONE]"
    return [json.loads(part[6:]) for part in parts[:-2]]


def fold_chat(chunks: list[Any]) -> dict[int, dict[str, Any]]:
    """Index -> role, content, logprobs, finish_reason, stop_reason, token_ids."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            choice = choices.setdefault(
                part["index"], {"content": "", "logprobs": None, "finish_reason": None}
            )
            assert choice["finish_reason"] is None, "a chunk after the last one"
            choice["content"] += part["delta"].get("content", "")
            choice.update({k: v for k, v in part["delta"].items() if k == "role"})
            if part["logprobs"] is not None:
                choice["logprobs"] = (choice["logprobs"] or []) + part["logprobs"]["content"]
            choice["finish_reason"] = part["finish_reason"]
            choice["stop_reason"] = part.get("stop_reason")
            if "token_ids" in part:
                choice["token_ids"] = choice.get("token_ids", []) + part["token_ids"]
    return choices


def whole_chat(body: Any) -> dict[int, dict[str, Any]]:
    """The same of an answer that was not streamed."""
    result = {}
    for choice in body["choices"]:
        logprobs = choice["logprobs"]
        result[choice["index"]] = {
            "role": choice["message"]["role"],
            "content": choice["message"]["content"],
            "logprobs": None if logprobs is None else logprobs["content"],
            "finish_reason": choice["finish_reason"],
            "stop_reason": choice["stop_reason"],
        }
        if choice["token_ids"] is not None:
            result[choice["index"]]["token_ids"] = choice["token_ids"]
    return result


def fold_completion(chunks: list[Any]) -> dict[int, dict[str, Any]]:
    """Index -> text, logprobs, finish_reason, stop_reason, token_ids."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            choice = choices.setdefault(
                part["index"], {"text": "", "logprobs": None, "finish_reason": None}
            )
            assert choice["finish_reason"] is None, "a chunk after the last one"
            choice["text"] += part["text"]
            choice["finish_reason"] = part["finish_reason"]
            choice["stop_reason"] = part["stop_reason"]
            if part["logprobs"] is not None:
                choice["logprobs"] = _join(choice["logprobs"], part["logprobs"])
            for name in ("token_ids", "prompt_token_ids"):
                if name in part:
                    choice[name] = choice.get(name, []) + part[name]
    return choices


def whole_completion(body: Any) -> dict[int, dict[str, Any]]:
    """The same of an answer that was not streamed."""
    names = ("text", "logprobs", "finish_reason", "stop_reason", "token_ids", "prompt_token_ids")
    return {
        choice["index"]: {
            name: choice[name]
            for name in names
            if choice[name] is not None or not name.endswith("_ids")
        }
        for choice in body["choices"]
    }


def _join(first: Any, then: Any) -> Any:
    if first is None:
        return then
    return {name: None if first[name] is None else first[name] + then[name] for name in first}
