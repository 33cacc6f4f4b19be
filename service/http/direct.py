"""An endpoint that the connection may call without an ASGI task, where its answer takes a short time."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from service.base.budget import Reservation
from service.base.timing import Timing
from service.engine.engine import Engine
from service.http.body import Body, Headers
from service.http.response import Fields, Pieces
from service.model.model import Model


@dataclass(slots=True)
class RequestContext:
    """What belongs to a request beside its body."""

    headers: Headers
    timing: Timing
    reservation: Reservation  # of the memory budget


class DirectEndpoint(ABC):
    """Answers POST requests, as an ASGI application or inline."""

    engine: Engine

    @abstractmethod
    def model(self, path_params: Mapping[str, Any]) -> Model:
        """The model that the path names.

        Raises:
            NotFound, NotReady: there is none, or not yet.
        """

    @abstractmethod
    def json_length(self, headers: Headers) -> int | None:
        """How many bytes of the body are JSON; None = the whole body.

        Raises:
            HeedError: anything that is wrong with the headers.
        """

    @abstractmethod
    def answer_inline(
        self, path_params: Mapping[str, Any], body: tuple[bytes, Body], context: RequestContext
    ) -> tuple[Pieces, Fields] | None:
        """The body and the header fields of a response that takes a short time; None for a request that was not run.

        Raises:
            Exception: as ``__call__``; the request failed and must not be run again.
        """

    @abstractmethod
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as an ASGI application."""
