"""Small ASGI servers under uvicorn, each of which misbehaves in a way of its own."""

import socket
import time
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import pytest
import uvicorn


class App:
    """Answers every POST with ``status`` and an empty JSON object.

    From the ``after``-th POST on it is itself: once, the whole process stands still for ``stall`` seconds; ``closing``
    ends each connection with its answer.
    """

    def __init__(self, status: int = 200, stall: float = 0, after: int = 1, closing: bool = False) -> None:
        self.status, self.stall, self.after, self.closing = status, stall, after, closing
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
        headers = [(b"content-length", b"2")] + [(b"connection", b"close")] * self.closing
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})


@pytest.fixture
def served() -> Iterator[Callable[[App], str]]:
    """Serves an app until the test ends; answers its URL."""
    running = []

    def serve(app: App) -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        running.append((server, thread, listening))
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield serve
    for server, thread, listening in running:
        server.should_exit = True
        thread.join(10)
        listening.close()


@pytest.fixture
def scenario(tmp_path) -> str:
    """A file with one request that any server understands."""
    (tmp_path / "body.json").write_text("{}")
    (tmp_path / "any.toml").write_text('[[request]]\npath = "/any"\nbody = "body.json"\n')
    return str(tmp_path / "any.toml")
