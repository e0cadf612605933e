"""How a config field declares its flag: type, choices and help in one place.

`flag(default, help)` is a flag that works. `later(default, feature)` is a flag of vLLM whose
feature this build does not have: it parses, and any value but the default is refused at start-up.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

INT = "int"
HUMAN_INT = "int*"
FLOAT = "float"
STR = "str"
BOOL = "bool"
BOOL_OR_STR = "bool|str"
JSON = "json"
STR_LIST = "str+"
INT_LIST = "int+"


@dataclass(frozen=True)
class Flag:
    """What the command line knows of a field."""

    kind: str
    meaning: str
    choices: tuple[str, ...] | None = None
    short: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    missing: str | None = None
    """Set if the feature is not in this build: what it is."""


def _kind(default: object) -> str:
    if isinstance(default, bool):
        return BOOL
    if isinstance(default, int):
        return INT
    if isinstance(default, float):
        return FLOAT
    if isinstance(default, dict):
        return JSON
    return STR_LIST if isinstance(default, (tuple, list)) else STR


def _field(default: Any, spec: Flag) -> Any:
    metadata = {"flag": spec}
    if isinstance(default, (dict, list)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def flag(
    default: Any, meaning: str, *, kind: str | None = None, choices: tuple[str, ...] | None = None,
    short: tuple[str, ...] = (), aliases: tuple[str, ...] = (),
) -> Any:
    """A field with a flag of the same name."""
    return _field(default, Flag(kind or _kind(default), meaning, choices, short, aliases))


def later(
    default: Any, feature: str, *, kind: str | None = None, choices: tuple[str, ...] | None = None,
    short: tuple[str, ...] = (), aliases: tuple[str, ...] = (),
) -> Any:
    """A field whose feature is not in this build; only its default is accepted."""
    meaning = f"{feature}: not supported by this build yet"
    return _field(default, Flag(kind or _kind(default), meaning, choices, short, aliases, feature))


def flags_of(config: type) -> dict[str, Flag]:
    """Field name -> Flag, in order, of the fields that are flags."""
    return {f.name: f.metadata["flag"] for f in dataclasses.fields(config) if "flag" in f.metadata}
