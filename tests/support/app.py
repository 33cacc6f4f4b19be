"""A small ASGI application that misbehaves as a test wants, and a server of it in this process."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import uvicorn


class App:
    """Answers every POST with ``status`` and an empty JSON object.

    From the ``after``-th POST on it is itself: once, the whole process stands still for ``stall`` seconds; ``closing``
    ends each connection with its answer. A request without the ``key``, if there is one, is answered with 401.
    """

    def __init__(
        self, status: int = 200, stall: float = 0, after: int = 1, closing: bool = False, key: str = ""
    ) -> None:
        self.status, self.stall, self.after, self.closing, self.key = status, stall, after, closing, key
        self.posts = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        self.posts += scope["method"] == "POST"
        mine = self.posts >= self.after
        if mine and self.stall:
            seconds, self.stall = self.stall, 0
            time.sleep(seconds)
        status = self.status if mine else 200
        if self.key and dict(scope["headers"]).get(b"authorization") != f"Bearer {self.key}".encode():
            status = 401
        headers = [(b"content-length", b"2")] + [(b"connection", b"close")] * self.closing
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})


@contextmanager
def app_server(app: App, tls: Path | None = None) -> Iterator[str]:
    """The URL of ``app`` under uvicorn, by HTTPS if ``tls`` is the folder of the fixture ``certificate``."""
    files = {"ssl_certfile": tls / "certificate", "ssl_keyfile": tls / "key"} if tls else {}
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1, **files
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)


@contextmanager
def closed_port() -> Iterator[str]:
    """The address of a port that is taken, so that no server listens there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"
