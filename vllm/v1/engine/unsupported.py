"""What users of other engines may call and this one refuses: clearly, and in one place."""

from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from vllm.exceptions import VLLMValidationError


def refuse(name: str, why: str) -> NoReturn:
    """Raise the error of a parameter or call that is not supported."""
    raise VLLMValidationError(f"{name} is not supported: {why}", param=name)


def unsupported(name: str, why: str) -> Callable[..., Coroutine[Any, Any, NoReturn]]:
    """A coroutine method that refuses whatever it is called with."""

    async def method(*args: object, **kwargs: object) -> NoReturn:
        refuse(name, why)

    method.__doc__ = f"Refused: {why}"
    return method


def unsupported_sync(name: str, why: str) -> Callable[..., NoReturn]:
    """As `unsupported`, for callers that block."""

    def method(*args: object, **kwargs: object) -> NoReturn:
        refuse(name, why)

    method.__doc__ = f"Refused: {why}"
    return method
