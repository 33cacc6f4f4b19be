"""The client, sync and async: one set of tests for both."""

import asyncio
from collections.abc import Callable, Iterator

import httpx
import pytest

from heed_client import AsyncClient, AsyncMemory, Client
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


async def awaited(result):
    return await result


class Blocking:
    """``AsyncMemory``, used as ``Memory`` is."""

    def __init__(self, memory: AsyncMemory, runner: asyncio.Runner) -> None:
        self._memory = memory
        self._runner = runner

    def __getattr__(self, name: str) -> object:
        value = getattr(self._memory, name)
        if not asyncio.iscoroutinefunction(value):
            return value
        return lambda *given, **named: self._runner.run(value(*given, **named))

    def __enter__(self) -> "Blocking":
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._memory.__aexit__(*error))


class Async:
    """``AsyncClient`` on an event loop of its own, called as if it were sync."""

    def __init__(self, url: str, **settings) -> None:
        recording = AsyncRecording()
        self.asked = recording.asked
        self._runner = asyncio.Runner()
        self._client = AsyncClient(url, transport=recording, **settings)

    def __getattr__(self, name: str) -> Callable:
        return lambda *given, **named: self._blocking(
            self._runner.run(awaited(getattr(self._client, name)(*given, **named)))
        )

    def _blocking(self, result: object) -> object:
        if isinstance(result, list):
            return [self._blocking(one) for one in result]
        return Blocking(result, self._runner) if isinstance(result, AsyncMemory) else result

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
