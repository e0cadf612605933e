"""Structured outputs, reasoning and tools."""

from dataclasses import dataclass
from typing import Any

from vllm.config.flags import JSON, STR, later


@dataclass(frozen=True)
class StructuredOutputsConfig:
    """What constrains or parses the text of answers."""

    structured_outputs_config: dict[str, Any] = later({}, "structured outputs")
    reasoning_parser: str = later("", "reasoning parsers")
    reasoning_parser_plugin: str = later("", "reasoning parsers")
    reasoning_config: dict[str, Any] | None = later(None, "reasoning parsers", kind=JSON)
    enable_auto_tool_choice: bool = later(False, "tool calls")
    tool_call_parser: str | None = later(None, "tool calls", kind=STR)
    tool_parser_plugin: str = later("", "tool calls")
    tool_strict_level: str = later("auto", "tool calls",
                                   choices=("auto", "function", "parameter"))
    exclude_tools_when_tool_choice_none: bool = later(False, "tool calls")
    tool_server: str | None = later(None, "tool servers", kind=STR)
