"""Notices that a client has gone, so that its request stops at once.

ASGI tells it through `receive`, which a handler that is busy answering never calls; here a small
task listens while the handler works. Invariant: no listener outlives its request.
"""

import asyncio
from types import TracebackType
from typing import Any

from starlette.types import Receive


class ClientDisconnectedError(Exception):
    """Nobody is there to answer."""


class DisconnectWatch:
    """`async with`: cancels the current task when the client goes; `is_gone` tells why it was."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_gone = False

    async def __aenter__(self) -> "DisconnectWatch":
        self._task = asyncio.current_task()
        self._listener = asyncio.ensure_future(self._listen())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.cancel()
        if self.is_gone and isinstance(error, asyncio.CancelledError):
            forget_cancellation(self._task)
            raise ClientDisconnectedError from None

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True
        if self._task is not None:
            self._task.cancel()


def forget_cancellation(task: "asyncio.Task[Any] | None") -> None:
    """The cancellation was ours and is dealt with (Python 3.11 counts them)."""
    if task is not None and hasattr(task, "uncancel"):
        task.uncancel()
