"""Objects by their dotted name: how plugins and executors name classes."""

from importlib import import_module
from typing import Any

from vllm.exceptions import ConfigError


def resolve_dotted(path: str) -> Any:
    """The object that `module:name` or `module.name` names."""
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{path} can't be imported: {error}") from error
