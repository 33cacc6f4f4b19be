"""Endpoints whose requests need many runs, which are answered at once, or as a stream of events."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from service.base.budget import Reservation
from service.base.errors import HeedError
from service.http.body import CountedReceive
from service.http.direct import RequestContext
from service.http.response import JSON, Pieces, error_response, failure, respond
from service.inference.disconnect import ClientWatch
from service.inference.stages import Stages, run_stages
from service.model.model import Model
from service.native.endpoint import AttentionEndpoint
from service.telemetry.counters import NO_MODEL

EVENTS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]


class StreamableRequest(Protocol):
    """A decoded request."""

    @property
    def stream(self) -> bool:
        """Whether it is answered as a stream."""


R = TypeVar("R", bound=StreamableRequest)
T = TypeVar("T")


class ManyRunsEndpoint(ABC, Generic[R]):
    """The pipeline of a request; ``pipeline`` receives and cuts bodies. A disconnect of the client ends its runs."""

    api: ClassVar[str]  # its name in metrics
    is_v2 = False

    def __init__(self, pipeline: AttentionEndpoint) -> None:
        self.pipeline = pipeline
        self.engine = pipeline.engine

    def model(self, path_params: Mapping[str, Any]) -> Model:
        """The model that the path names.

        Raises:
            NotFound, NotReady: there is none, or not yet.
        """
        return self.pipeline.repository.block(path_params["block"], noun="model")

    @abstractmethod
    def check(self, model: Model) -> None:
        """Raises Invalid: the model cannot do it, whatever the body says."""

    @abstractmethod
    def decode(self, model: Model, content: bytes, path: str, context: RequestContext) -> Stages[R]:
        """The request whose JSON is ``content``.

        Raises:
            HeedError: anything that is wrong with it.
        """

    def named(self, error: HeedError) -> HeedError:
        """``error`` with this API's name of its field."""
        return error

    @abstractmethod
    async def answer(self, request: R) -> Pieces:
        """The JSON of the whole answer."""

    def events(self, request: R) -> AsyncGenerator[bytes]:
        """Each event of the stream, of a request that is answered so."""
        raise NotImplementedError(f"{self.api} has no streams, got {request}")

    def error_event(self, problem: bytes) -> bytes:
        """The event that ends a stream after an error."""
        return event("error", problem)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state, counts = scope["state"], self.engine.counts
        reservation = Reservation(self.engine.budget)
        version = NO_MODEL
        context = RequestContext(state["headers"], state["timing"], reservation)
        timing, counted = context.timing, CountedReceive(receive, reservation)
        client = ClientWatch(counted)
        counts.in_flight += 1
        try:
            model = self.model(scope["path_params"])
            version = model.name, model.version
            self.check(model)
            self.engine.check_queue()
            content, _ = await self.pipeline.receive(counted, context)
            client.start()
            decoding = self.decode(model, content, scope["path"], context)
            check = self.pipeline.decoding_check(client, context)
            try:
                request = await run_stages(decoding, self.engine.offload, check)
            except HeedError as error:
                raise self.named(error) from None
            timing.lap("decode")
            if request.stream:
                await _unless_disconnected(self._stream(request, scope, send), client)
            else:
                pieces = await _unless_disconnected(self.answer(request), client)
                await respond(send, pieces, JSON)
            timing.lap("compute")
        except Exception as error:
            counts.observe_failure(version, self.api, *failure(error, self.is_v2))
            raise
        finally:
            counts.in_flight -= 1
            client.close()
            reservation.release()
        counts.observe(version, self.api, timing)

    async def _stream(self, request: R, scope: Scope, send: Send) -> None:
        """Send the events.

        Raises:
            Exception, CancelledError: also after its event was sent: it is counted, and logged.
        """
        async with aclosing(self.events(request)) as events:
            first = await anext(events)  # an error before it is an ordinary answer
            await send({"type": "http.response.start", "status": 200, "headers": [*EVENTS]})
            await send(_body(first))
            try:
                async for content in events:
                    await send(_body(content))
            except (Exception, asyncio.CancelledError) as error:  # also where the server ends
                problem = bytes(error_response(scope["path"], error).body)
                await send(_body(self.error_event(problem), more=False))
                raise
        await send(_body(b"", more=False))


def event(name: str, json: bytes) -> bytes:
    """An event of a stream, of the WHATWG's server-sent events."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), json)


async def _unless_disconnected(work: Coroutine[Any, Any, T], client: ClientWatch) -> T:
    """The result of ``work``, which is cancelled if the client disconnects.

    Raises:
        ClientDisconnect: it did.
    """
    working = asyncio.ensure_future(work)
    return await client.cancel_on_disconnect(working, working.cancel)


def _body(content: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": more}
