"""The client, sync and async: one set of tests for both."""

import asyncio
from collections.abc import Callable, Iterator

import httpx
import pytest

from heed_client import AsyncClient, Client
from heed_client.__main__ import main


class Recording(httpx.HTTPTransport):
    """Notes what is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.path}")
        return super().handle_request(request)


class AsyncRecording(httpx.AsyncHTTPTransport):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.path}")
        return await super().handle_async_request(request)


class Sync:
    """``Client``, and what it asked."""

    def __init__(self, url: str, **settings) -> None:
        recording = Recording()
        self.asked = recording.asked
        self._client = Client(url, transport=recording, **settings)

    def __getattr__(self, name: str) -> Callable:
        return getattr(self._client, name)


class Async:
    """``AsyncClient`` on an event loop of its own, called as if it were sync."""

    def __init__(self, url: str, **settings) -> None:
        recording = AsyncRecording()
        self.asked = recording.asked
        self._runner = asyncio.Runner()
        self._client = AsyncClient(url, transport=recording, **settings)

    def __getattr__(self, name: str) -> Callable:
        return lambda *given, **named: self._runner.run(getattr(self._client, name)(*given, **named))

    def close(self) -> None:
        if self._client is not None:
            self._runner.run(self._client.aclose())
            self._runner.close()
            self._client = None


@pytest.fixture(params=[Sync, Async])
def connect(request) -> Iterator[Callable]:
    """Makes clients of a URL, and closes them."""
    made = []

    def make(url: object, **settings) -> Sync | Async:
        made.append(request.param(str(url).rstrip("/"), **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def heed(connect, client):
    """A client of the real server."""
    return connect(client.base_url)


@pytest.fixture
def attend(client, capsys, monkeypatch):
    """Runs the command; answers its status, and what it wrote to both streams."""
    monkeypatch.setenv("HEED_URL", str(client.base_url).rstrip("/"))

    def run(*arguments):
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as error:
            status = error.code
        return status, *capsys.readouterr()

    return run
