"""A run whose client disconnects while it is queued is cancelled."""

import asyncio

import numpy as np
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from service.engine.engine import Engine
from service.engine.task import InferenceTask

WATCH_DELAY_S = 0.02  # for which a request waits before its client is watched: most are done by then


async def run_unless_disconnected(engine: Engine, task: InferenceTask, receive: Receive) -> dict[str, np.ndarray]:
    """The outputs of ``task``. It is cancelled if the client disconnects while it is queued; a run is not interrupted.

    Raises:
        ClientDisconnect: the client disconnected.
        Exception: any error of ``engine.run``.
    """
    is_disconnected = False
    watch: asyncio.Task[Message] | None = None

    def begin_to_watch() -> None:
        nonlocal watch
        watch = asyncio.ensure_future(receive())
        watch.add_done_callback(cancel_on_disconnect)

    def cancel_on_disconnect(watched: "asyncio.Task[Message]") -> None:
        nonlocal is_disconnected
        if not watched.cancelled() and watched.result()["type"] == "http.disconnect" and task.future is not None:
            is_disconnected = True
            task.future.cancel()

    timer = asyncio.get_running_loop().call_later(WATCH_DELAY_S, begin_to_watch)
    try:
        return await engine.run(task)
    except asyncio.CancelledError:
        if is_disconnected:
            raise ClientDisconnect from None
        raise
    finally:
        timer.cancel()
        if watch is not None:
            watch.cancel()
