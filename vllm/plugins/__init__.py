"""Other packages extend this one through entry points; VLLM_PLUGINS names those that may.

Invariant: a plugin that fails is logged and left out, it never stops the start. Installations
without plugins pay for a look at their packages' entry_points.txt, not for importlib.metadata
(1 ms instead of 40).
"""

import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from vllm import envs
from vllm.exceptions import ConfigError
from vllm.logger import init_logger

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

logger = init_logger(__name__)

GENERAL = "vllm.general_plugins"
PLATFORM = "vllm.platform_plugins"
STAT_LOGGERS = "vllm.stat_logger_plugins"
LOGITS_PROCESSORS = "vllm.logits_processors"


@lru_cache(maxsize=1)
def load_general_plugins() -> None:
    """Call every general plugin, once in each process."""
    for name, register in load_group(GENERAL).items():
        try:
            register()
        except Exception:
            logger.exception("The plugin %s failed and is left out", name)


def load_group(group: str) -> dict[str, Any]:
    """The objects of a group by name, without those that can't be imported."""
    found: dict[str, Any] = {}
    for entry in _entry_points(group):
        if envs.VLLM_PLUGINS is not None and entry.name not in envs.VLLM_PLUGINS:
            continue
        try:
            found[entry.name] = entry.load()
        except Exception:
            logger.exception("The plugin %s (%s) can't be loaded", entry.name, entry.value)
    return found


def platform_class() -> str | None:
    """The dotted name of the Platform that a plugin brings; two at once are refused."""
    names: dict[str, str] = {}
    for plugin, detect in load_group(PLATFORM).items():
        try:
            name = detect()
        except Exception:
            logger.exception("The platform plugin %s failed and is left out", plugin)
            continue
        if name is not None:
            names[plugin] = name
    if len(names) > 1:
        raise ConfigError(f"Several platform plugins want this machine ({', '.join(names)}); "
                          "choose one with VLLM_PLUGINS.")
    return next(iter(names.values()), None)


def _entry_points(group: str) -> list["EntryPoint"]:
    if envs.VLLM_PLUGINS == [] or group not in _groups():
        return []
    from importlib.metadata import entry_points

    return list(entry_points(group=group))


@lru_cache(maxsize=1)
def _groups() -> frozenset[str]:
    """Every entry point group of this package that some installed package extends."""
    return frozenset(
        line[1:-1].strip()
        for text in _entry_point_files()
        for line in map(str.strip, text.splitlines())
        if line.startswith("[vllm.") and line.endswith("]"))


def _entry_point_files() -> Iterator[str]:
    for folder in dict.fromkeys(sys.path):
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    path = os.path.join(folder, name, "entry_points.txt")
                    with open(path, encoding="utf-8", errors="replace") as file:
                        yield file.read()
                except OSError:
                    continue
