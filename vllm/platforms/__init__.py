"""The machine this process runs on: `current_platform`, resolved once, when first used.

A plugin of group `vllm.platform_plugins` may name another Platform class; this build itself has the
CPU, and the empty platform of tests (VLLM_TARGET_DEVICE=empty).
"""

from typing import TYPE_CHECKING, Any

from vllm import envs
from vllm.exceptions import ConfigError
from vllm.platforms.interface import EmptyPlatform, Platform

if TYPE_CHECKING:
    current_platform: Platform

__all__ = ["EmptyPlatform", "Platform", "current_platform"]


def __getattr__(name: str) -> Any:
    if name != "current_platform":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    platform = globals()["current_platform"] = _resolve()
    return platform


def _resolve() -> Platform:
    from vllm.plugins import platform_class

    named = platform_class()
    if named is not None:
        from vllm.utils.dotted import resolve_dotted

        found = resolve_dotted(named)
        if not (isinstance(found, type) and issubclass(found, Platform)):
            raise ConfigError(f"The platform plugin names {named}, which is not a Platform.")
        return found()
    if envs.VLLM_TARGET_DEVICE == "empty":
        return EmptyPlatform()
    from vllm.platforms.cpu import CpuPlatform

    return CpuPlatform()
