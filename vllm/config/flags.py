"""How a config field declares its flag: type, choices, help and what is refused, in one place.

`flag(default, help)` is a flag that works. `later(default, feature)` is a flag of vLLM whose
feature this build does not have: it parses, and any value but the default is refused at start-up.
`make_config` is the only way from values to a config, so nothing is accepted and ignored.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from vllm.exceptions import ConfigError
from vllm.logger import init_logger

logger = init_logger(__name__)

T = TypeVar("T")

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
    feature: str | None = None
    """Set if this build lacks it: the feature that the flag, or a choice in `missing`, needs."""
    missing: tuple[str, ...] = ()
    """Choices of vLLM that are refused until the feature is there."""
    note: str | None = None
    """What the log says when the flag is given: an older form, or one without an effect."""
    is_repeatable: bool = False
    """A list flag that may be given several times, with more values each time."""

    @property
    def is_supported(self) -> bool:
        """False if only the default is accepted."""
        return self.feature is None or bool(self.missing)


def flag(
    default: Any, meaning: str, *, kind: str | None = None, choices: tuple[str, ...] | None = None,
    short: tuple[str, ...] = (), aliases: tuple[str, ...] = (), feature: str | None = None,
    missing: tuple[str, ...] = (), note: str | None = None, is_repeatable: bool = False,
) -> Any:
    """A field with a flag of the same name."""
    return _field(default, Flag(kind or _kind(default), meaning, choices, short, aliases, feature,
                                missing, note, is_repeatable))


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


def option_of(name: str) -> str:
    """The flag of a field: max_model_len -> --max-model-len."""
    return "--" + name.replace("_", "-")


def make_config(config: type[T], values: Mapping[str, Any]) -> T:
    """A config from the `values` of its flags; None is the default, other keys are left alone.

    Raises ConfigError for a value of the wrong type, outside the choices, or of a missing feature.
    """
    defaults, given = config(), {}
    fields: dict[str, Any] = getattr(config, "__dataclass_fields__", {})
    for name, spec in flags_of(config).items():
        default, value = getattr(defaults, name), values.get(name)
        if value is None or (value == default and type(value) is type(default)):
            continue
        if value is False and not spec.is_supported:
            continue  # "auto" or off: without the feature it is off
        given[name] = _checked(name, spec, _converted(name, value, fields[name].type))
        if spec.note:
            logger.warning("%s: %s", option_of(name), spec.note)
    return config(**given)


def _converted(name: str, value: Any, annotation: Any) -> Any:
    import msgspec

    try:
        return msgspec.convert(value, annotation)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{option_of(name)} is {value!r}: {error}.") from None


def _checked(name: str, spec: Flag, value: Any) -> Any:
    if not spec.is_supported:
        _refuse(option_of(name), spec, "leave the flag out")
    if value in spec.missing:
        _refuse(f"{option_of(name)} {value}", spec, f"use {_either(spec.choices)}")
    if spec.choices and value is not None and value not in spec.choices:
        raise ConfigError(f"{option_of(name)} is {value!r}; it must be {_either(spec.choices)}.")
    return value


def _refuse(what: str, spec: Flag, remedy: str) -> NoReturn:
    raise ConfigError(f"{what}: {spec.feature} is not supported by this build yet; {remedy}.")


def _either(choices: tuple[str, ...] | None) -> str:
    *most, last = choices or ("another value",)
    return f"{', '.join(most)} or {last}" if most else last


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
