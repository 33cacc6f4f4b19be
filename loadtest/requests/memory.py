"""The keys and values of the requests, stored on a server once, so that the requests need not have them."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import httpx
import numpy as np

from heed_client import Client, HeedError, Memory
from loadtest.requests.server import TIMEOUT_S, Server, ServerError

LIFE_S = 86400  # of what a load test stores and does not delete, because it was killed


class StoredKeys:
    """What a load test has stored on ``server``; deleted at the end of ``with``."""

    def __init__(self, server: Server) -> None:
        self._url = server.url
        self._heed = Client(server.url, timeout=TIMEOUT_S, transport=_WithHeaders(server))
        self._memories: list[Memory] = []

    def store(self, tensors: Mapping[str, np.ndarray]) -> str:
        """The id of a new memory of a key and a value.

        Raises:
            ServerError: the server rejects it, or has no memories.
        """
        try:
            self._memories.append(self._heed.memory(tensors["key"], tensors["value"], ttl_seconds=LIFE_S))
        except HeedError as error:
            raise ServerError(f"{self._url} stores no memory: {error}") from error
        return self._memories[-1].id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        with self._heed:
            for memory in self._memories:
                try:
                    memory.delete()
                except HeedError:  # the server has ended; nothing can be done about what it keeps
                    return


class _WithHeaders(httpx.HTTPTransport):
    """Sends further headers with every request."""

    def __init__(self, server: Server) -> None:
        super().__init__(verify=server.verify)
        self._headers = server.headers

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.headers.update(self._headers)
        return super().handle_request(request)
