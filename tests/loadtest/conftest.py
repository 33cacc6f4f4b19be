"""Small ASGI servers under uvicorn, each of which misbehaves in a way of its own."""

import socket
from collections.abc import Callable, Iterator
from threading import Thread

import pytest
import uvicorn

from tests.support.app import App


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
