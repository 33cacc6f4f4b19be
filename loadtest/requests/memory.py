"""The keys and values of the requests, stored on a server once, so that the requests can omit them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import httpx
import numpy as np

from heed_client import Client, HeedError, Memory
from loadtest.requests.server import TIMEOUT_S, Server, ServerError

LIFE_S = 86400  # of memories that a killed load test does not delete


Store = Callable[[Mapping[str, np.ndarray]], str]  # stores a key and a value; returns the memory's id


@contextmanager
def stored_keys(server: Server) -> Iterator[Store]:
    """A function that stores keys and values on ``server``; the memories are deleted at the end of ``with``.

    The function raises ServerError if the server rejects them, or has no memories.
    """
    memories: list[Memory] = []
    with Client(server.url, timeout=TIMEOUT_S, transport=_WithHeaders(server)) as heed:

        def store(tensors: Mapping[str, np.ndarray]) -> str:
            try:
                memories.append(heed.memory(tensors["key"], tensors["value"], ttl_seconds=LIFE_S))
            except HeedError as error:
                raise ServerError(f"{server.url} did not store the memory: {error}") from error
            return memories[-1].id

        try:
            yield store
        finally:
            with suppress(HeedError):  # the server has ended; nothing can be done about its memories
                for memory in memories:
                    memory.delete()


class _WithHeaders(httpx.HTTPTransport):
    """Sends further headers with every request."""

    def __init__(self, server: Server) -> None:
        super().__init__(verify=server.verify)
        self._headers = server.headers

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.headers.update(self._headers)
        return super().handle_request(request)
