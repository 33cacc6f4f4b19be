"""A client that hangs up while its request waits: the request is not run."""

import asyncio

import numpy as np
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from service.engine import Engine
from service.work import Work

PATIENCE = 0.02  # seconds of waiting after which it is watched for: most work is done by then, and a watch is a task


async def run_watched(engine: Engine, work: Work, receive: Receive) -> dict[str, np.ndarray]:
    """What ``engine.run`` answers, as long as the client is there; what has begun to run is run to its end.

    Raises:
        ClientDisconnect: the client hung up.
        Exception: what ``engine.run`` raises.
    """
    gone = False
    watch: asyncio.Task[Message] | None = None

    def begin() -> None:
        nonlocal watch
        watch = asyncio.ensure_future(receive())
        watch.add_done_callback(end)

    def end(watched: "asyncio.Task[Message]") -> None:
        nonlocal gone
        if not watched.cancelled() and watched.result()["type"] == "http.disconnect" and work.future is not None:
            gone = True
            work.future.cancel()

    alarm = asyncio.get_running_loop().call_later(PATIENCE, begin)
    try:
        return await engine.run(work)
    except asyncio.CancelledError:
        if gone:
            raise ClientDisconnect from None
        raise
    finally:
        alarm.cancel()
        if watch is not None:
            watch.cancel()
