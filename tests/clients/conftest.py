"""The client, sync and async: one set of tests for both."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from functools import partial

import httpx
import pytest

from heed import main
from heed_client import AsyncClient, AsyncGeneration, AsyncMemory, Client, GeneratedToken
from tests.support.app import closed_port


class Blocking:
    """An ``AsyncClient`` or what it returns, on an event loop of its own, called as if it were sync."""

    def __init__(self, target: AsyncClient | AsyncMemory | AsyncGeneration, runner: asyncio.Runner) -> None:
        self._target = target
        self._runner = runner

    def __getattr__(self, name: str) -> object:
        value = getattr(self._target, name)
        return partial(self._call, value) if callable(value) else value

    def _call(self, method: Callable, *arguments: object, **options: object) -> object:
        async def await_result() -> object:
            result = method(*arguments, **options)
            return await result if inspect.isawaitable(result) else result

        return self._wrapped(self._runner.run(await_result()))

    def _wrapped(self, result: object) -> object:
        if isinstance(result, list):
            return [self._wrapped(one) for one in result]
        return Blocking(result, self._runner) if isinstance(result, AsyncMemory | AsyncGeneration) else result

    def __repr__(self) -> str:
        return repr(self._target)

    def __iter__(self) -> Iterator[GeneratedToken]:
        tokens = aiter(self._target)
        end = object()
        while (token := self._call(anext, tokens, end)) is not end:
            yield token

    def __enter__(self) -> "Blocking":
        return self

    def __exit__(self, *error: object) -> None:
        self._call(self._target.__aexit__, *error)


def recorded(client: Client | AsyncClient) -> Client | AsyncClient:
    """The client; its ``asked`` lists what it asked, and its ``ports`` are those of its connections."""
    client.asked, client.ports = [], set()

    def record(response: httpx.Response) -> None:
        client.asked.append(f"{response.request.method} {response.request.url.path}")
        if stream := response.extensions.get("network_stream"):
            client.ports.add(stream.get_extra_info("client_addr"))

    async def record_async(response: httpx.Response) -> None:
        record(response)

    client._http.event_hooks = {"response": [record if isinstance(client, Client) else record_async]}
    return client


@pytest.fixture(params=[Client, AsyncClient], ids=["sync", "async"])
def connect(request) -> Iterator[Callable]:
    """Makes clients of a URL, and closes them."""
    with asyncio.Runner() as runner:
        clients = []

        def make(url: object = None, **settings) -> Client | Blocking:
            clients.append(recorded(request.param(url and str(url).rstrip("/"), **settings)))
            return clients[-1] if request.param is Client else Blocking(clients[-1], runner)

        yield make
        for client in clients:
            client.close() if request.param is Client else runner.run(client.aclose())


@pytest.fixture
def heed(connect, client):
    """A client of the real server."""
    return connect(client.base_url)


@pytest.fixture
def sync_heed(client) -> Iterator[Client]:
    """The same, for what does not depend on the kind of client."""
    with recorded(Client(str(client.base_url))) as heed:
        yield heed


@pytest.fixture
def closed_address() -> Iterator[str]:
    """The address of a port at which no server listens."""
    with closed_port() as address:
        yield address


@pytest.fixture
def command(client, capsys, monkeypatch) -> Callable:
    """Runs ``heed`` on the real server; returns its status, and what it wrote to both streams."""
    monkeypatch.setenv("HEED_URL", str(client.base_url).rstrip("/"))

    def run(*arguments):
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as error:
            status = error.code
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def attend(command) -> Callable:
    """Runs ``heed run``, which is to succeed; returns what it printed."""

    def run(*arguments):
        status, printed, wrong = command("run", *arguments)
        assert (status, wrong) == (0, "")
        return printed

    return run
