"""A request whose client disconnects ends: its run leaves the queue, and its JSON is not read or written further."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")
WATCH_DELAY_S = 0.02  # for which a request waits before its client is watched: most are done by then


class ClientWatch:
    """Waits for the disconnect of a request's client, from a moment after ``start``, when its body has come."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None
        self._cancel: Callable[[], object] | None = None
        self._is_disconnected = False

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(WATCH_DELAY_S, self._begin)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()

    def check(self) -> None:
        """Raises ClientDisconnect: the client disconnected."""
        if self._is_disconnected:
            raise ClientDisconnect

    async def cancel_on_disconnect(self, work: Awaitable[T], cancel: Callable[[], object]) -> T:
        """The result of ``work``, which ``cancel`` cancels.

        Raises:
            ClientDisconnect: the client disconnected.
            Exception: any error of ``work``.
        """
        self._cancel = cancel
        if self._is_disconnected:
            cancel()
        try:
            return await work
        except asyncio.CancelledError:
            self.check()
            raise
        finally:
            self._cancel = None

    def _begin(self) -> None:
        self._watching = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_disconnected = True
        if self._cancel is not None:
            self._cancel()
