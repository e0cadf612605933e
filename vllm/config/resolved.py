"""Reading values that only a resolved configuration has."""

from vllm.exceptions import ConfigError


def resolved(name: str, value: int | str | None) -> int:
    """`value` as the integer that `create_engine_config` has put in place of "auto" or None."""
    if not isinstance(value, int):
        raise ConfigError(f"{name} is {value}: the configuration was not resolved.")
    return value
