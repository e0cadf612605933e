"""One compiled chat template: renders within a budget, and says what content it expects.

Whatever a template does, the caller sees text or a 400 error about `messages`.
"""

import re
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NoReturn

import jinja2
from jinja2 import nodes

from vllm.entrypoints.template_sandbox import ChatEnvironment
from vllm.exceptions import ConfigError, VLLMValidationError

ContentFormat = Literal["string", "openai"]

MAX_SOURCE = 1_000_000
_MAX_MESSAGE = 500
_JINJA_SIGNS = ("{{", "{%", "{#")


def load_chat_template(value: str | Path | None) -> str | None:
    """The text of `--chat-template`: a file's content, or the value itself if it is a template."""
    if value is None:
        return None
    text = str(value)
    if any(sign in text for sign in _JINJA_SIGNS):
        return text
    try:
        file = Path(text)
        if file.stat().st_size > MAX_SOURCE:
            raise ConfigError(f"--chat-template: {text} is larger than {MAX_SOURCE} bytes.")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"--chat-template: {text[:200]!r} is neither a readable file nor a jinja template."
        )


class ChatTemplate:
    """Compiled once, rendered by any thread."""

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE:
            raise ConfigError(
                f"The chat template has {len(source)} characters; {MAX_SOURCE} may be."
            )
        self.source = source
        self._environment = ChatEnvironment()
        try:
            self._template = self._environment.compile_chat_template(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"The chat template, line {error.lineno}: {error.message}")
        except (jinja2.TemplateError, RecursionError, MemoryError, SyntaxError) as error:
            raise ConfigError(f"The chat template can't be compiled: {error}")

    def render(self, variables: dict[str, Any], num_input_chars: int) -> str:
        """The template's text for `variables`. Raises VLLMValidationError."""
        self._environment.start(num_input_chars)
        try:
            return self._template.render(variables)
        except jinja2.UndefinedError as error:
            _refuse(f"The chat template needs something that is missing: {error.message}")
        except jinja2.TemplateError as error:
            _refuse(error.message or "The chat template refused these messages.")
        except RecursionError:
            _refuse("The chat template recurses too deep.")
        except Exception as error:
            # Template code can raise anything; it is about these messages all the same.
            _refuse(f"The chat template can't render these messages: {error}")

    @cached_property
    def _tree(self) -> nodes.Template:
        return self._environment.parse(self.source)

    @cached_property
    def literal_text(self) -> str:
        """All text that the template itself can write, in pieces that do not touch."""
        pieces = {node.data for node in self._tree.find_all(nodes.TemplateData)}
        pieces |= {
            node.value for node in self._tree.find_all(nodes.Const) if isinstance(node.value, str)
        }
        return "\0".join(sorted(pieces))

    @cached_property
    def content_format(self) -> ContentFormat:
        """Is "openai" if the template loops over the parts of a message's content."""
        contents = {"content"} | {
            assignment.target.name
            for assignment in self._tree.find_all(nodes.Assign)
            if isinstance(assignment.target, nodes.Name) and _reads_content(assignment.node)
        }
        for loop in self._tree.find_all(nodes.For):
            source = loop.iter
            while isinstance(source, nodes.Filter) and source.node is not None:
                source = source.node
            if _reads_content(source):
                return "openai"
            if isinstance(source, nodes.Name) and source.name in contents:
                return "openai"
        return "string"


def _reads_content(node: nodes.Node) -> bool:
    """True for `message.content` and `message['content']`."""
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return False


def _refuse(message: str) -> NoReturn:
    text = re.sub(r"\s+", " ", message).strip()
    raise VLLMValidationError(text[:_MAX_MESSAGE], param="messages")
