"""Chat messages as users write them -> the plain dicts that templates read.

Invariant: a message that leaves here has a known role and text content of the template's format;
what can't be brought there is refused with the path of the field (`messages[2].content[0].type`).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from vllm.entrypoints.chat_template import ContentFormat
from vllm.entrypoints.template_budget import words
from vllm.exceptions import VLLMValidationError

Message = Mapping[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool", "function")

_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_MEDIA_PARTS = words(
    "image_url input_image image_pil image_embeds input_audio audio_url audio_embeds video_url "
    "video_embeds prompt_embeds file"
)


def normalise_messages(
    messages: Sequence[Message], content_format: ContentFormat
) -> list[dict[str, Any]]:
    """Copies of the messages in the template's format."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        _fail("messages", "messages must be a list of messages.")
    if not messages:
        _fail("messages", "messages is empty; it needs at least one message.")
    return [
        _normalise(message, f"messages[{index}]", content_format)
        for index, message in enumerate(messages)
    ]


def text_of(message: Message) -> str:
    """The text of a message that was accepted before."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(_part_text(part, "messages") for part in content)
    return content or ""


def _normalise(message: object, path: str, content_format: ContentFormat) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        _fail(path, f"{path} must be an object with role and content.")
    role = message.get("role")
    if role not in ROLES:
        _fail(
            f"{path}.role", f"{path}.role is {_shown(role)}; it must be one of {', '.join(ROLES)}."
        )
    if not isinstance(message.get("name"), (str, type(None))):
        _fail(f"{path}.name", f"{path}.name must be a string.")
    # Templates print the word None for a null; for them a missing key says the same.
    result = {key: value for key, value in message.items() if value is not None}
    result["content"] = _content(message, f"{path}.content", content_format)
    if "tool_calls" in result:
        result["tool_calls"] = _tool_calls(result["tool_calls"], f"{path}.tool_calls")
    return result


def _content(message: Message, path: str, content_format: ContentFormat) -> Any:
    content = message.get("content")
    if content is None:
        if message["role"] != "assistant":
            _fail(path, f"{path} is missing; it must be a string or a list of parts.")
        content = ""
    if isinstance(content, str):
        texts = [content]
    elif isinstance(content, list):
        texts = [_part_text(part, f"{path}[{index}]") for index, part in enumerate(content)]
    else:
        _fail(path, f"{path} is {_shown(content)}; it must be a string or a list of parts.")
    if content_format == "string":
        return "\n".join(texts)
    return [{"type": "text", "text": text} for text in texts]


def _part_text(part: object, path: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        _fail(path, f"{path} must be an object with a type.")
    kind = part.get("type")
    if kind in _MEDIA_PARTS:
        _fail(f"{path}.type", f"{path}.type is {_shown(kind)}; this model takes text only.")
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        _fail(f"{path}.type", f"{path}.type is {_shown(kind)}; known: {', '.join(_TEXT_PARTS)}.")
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        field = f"{path}.{_TEXT_PARTS[kind]}"
        _fail(field, f"{field} must be a string.")
    return text


def _tool_calls(calls: object, path: str) -> list[dict[str, Any]]:
    """Earlier tool calls; `arguments` that hold JSON become the object that templates expect."""
    if not isinstance(calls, list):
        _fail(path, f"{path} must be a list.")
    result = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            field = f"{path}[{index}].function"
            _fail(field, f"{field} must be an object with a name.")
        arguments = _parsed_arguments(function.get("arguments"))
        result.append({**call, "function": {**function, "arguments": arguments}})
    return result


def _parsed_arguments(arguments: object) -> object:
    """The object in a JSON string; a string that is cut off stays what it is."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        parsed = json.loads(arguments or "{}", parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, (str, int, float, type(None))) else type(value).__name__


def _fail(param: str, message: str) -> NoReturn:
    raise VLLMValidationError(message[:500], param=param)
