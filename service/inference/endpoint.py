"""An inference route: decode, run, encode. Raw ASGI, as this path has to be short."""

import math
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from starlette.types import Receive, Scope, Send

from service.base.budget import Reservation
from service.base.cache import BoundedCache
from service.base.cost import NANOSECOND, AssumedCost, CostModel
from service.base.errors import TimedOut
from service.base.timing import Timing
from service.codec.json_slices import SEND_TENSORS, LongList, LongText, cut, is_large
from service.engine.engine import Engine
from service.engine.task import InferenceTask
from service.http.body import SMALLER, Body, CountedReceive, Headers, receive_body, receive_parts, split
from service.http.compression import IDENTITY, MIN_BYTES, choose_encoding, content_encoding, deflater, inflate, slices
from service.http.direct import DirectEndpoint, RequestContext
from service.http.envelope import deadline
from service.http.response import Fields, Pieces, failure, length_of, respond
from service.inference.disconnect import ClientWatch
from service.inference.source import InputSource
from service.inference.stages import Stage, Stages, run_inline, run_stages
from service.model.model import Model
from service.repository.repository import Repository
from service.selection.answer import Answer
from service.settings import Settings
from service.telemetry.counters import NO_MODEL

MIN_BYTE_NS = 2.0  # of a body that is read; dense numbers take five times as long
MIN_DEFLATED_BYTE_NS = 10.0  # of a response: random digits take this, zeros a third
MAX_CHECKED = 1 << 20  # numbers of masks and ids that are checked on the event loop
PLANNING_NS = 20e6  # that it is assumed to take to check more, or to plan changes: too long for the event loop
SMALL_WORK = 20_000  # of an answer with options that is computed at once; about nanoseconds

AnswerFunction = Callable[[Mapping[str, Any], Receive, RequestContext], Awaitable[tuple[Pieces, Fields]]]


class DecodedRequest(Protocol):
    """A request as an endpoint decodes it."""

    @property
    def task(self) -> InferenceTask:
        """The run that it needs."""

    @property
    def response_bytes(self) -> int:
        """Upper bound on the memory that its response takes, as arrays and as text, in bytes."""


R = TypeVar("R", bound=DecodedRequest)


class InferenceEndpoint(DirectEndpoint, Generic[R]):
    """The pipeline of both APIs: decode, run, encode, and count. An API implements ``decode`` and ``encode``."""

    api: ClassVar[str]  # its name in metrics
    checking = AssumedCost(PLANNING_NS)
    smaller: ClassVar[str] = SMALLER  # in the error of JSON that exceeds the limit of bodies
    advice: ClassVar[str] = SEND_TENSORS  # in the error of JSON that is too long, its long strings and lists aside

    def __init__(self, repository: Repository, settings: Settings, engine: Engine, source: InputSource[Any]) -> None:
        self.repository = repository
        self.settings = settings
        self.engine = engine
        self.source = source
        self.cutting, self.decoding, self.reading = (CostModel(MIN_BYTE_NS) for _ in range(3))
        self.selecting, self.preparing = CostModel(), CostModel(NANOSECOND)
        self._writing, self._rounding = CostModel(), CostModel()
        self._deflating = CostModel(MIN_DEFLATED_BYTE_NS)
        self._caches: WeakKeyDictionary[Model, BoundedCache[Any]] = WeakKeyDictionary()

    async def receive(self, receive: Receive, context: RequestContext) -> tuple[bytes, Body]:
        """The JSON of the body and the bytes behind it, decompressed. The timing starts when the body has come.

        Raises:
            HeedError: anything that is wrong with the headers, the length or the compression.
            ClientDisconnect: the client went before the end of the body.
        """
        return await self.receive_body(receive, context, self.json_length(context.headers))

    async def receive_body(
        self, receive: Receive, context: RequestContext, json_length: int | None
    ) -> tuple[bytes, Body]:
        """As ``receive``; ``json_length`` bytes of the decompressed body are JSON; None = the whole body."""
        headers, longest = context.headers, self.settings.max_body_bytes
        encoding = content_encoding(headers)
        if encoding is None and json_length is not None:
            parts = await receive_parts(receive, headers, longest, json_length)
            context.timing.start()
            return parts
        advice = self.smaller if json_length is None else SMALLER
        body = await receive_body(receive, headers, longest, advice=advice)
        context.timing.start()
        if encoding is not None:
            body = await inflate(body, encoding, longest, context.reservation, self.engine, advice)
        return split(body, len(body) if json_length is None else json_length)

    @abstractmethod
    def decode(self, model: Model, body: tuple[bytes, Body], context: RequestContext) -> Stages[R]:
        """The request whose JSON, and the bytes behind it, are ``body``.

        The memory that it takes beside its body is reserved before it is taken.

        Raises:
            HeedError: anything that is wrong with it.
        """

    @abstractmethod
    def encode(
        self, request: R, outputs: dict[str, np.ndarray], context: RequestContext
    ) -> Stages[tuple[Pieces, Fields]]:
        """The body and the header fields of the response with the ``outputs`` of the request's run.

        Raises:
            Invalid: an output that JSON cannot represent.
        """

    @abstractmethod
    def encoding_ns(self, request: R, context: RequestContext) -> float:
        """The expected time of ``encode`` in nanoseconds; infinity where it should not be run on the event loop."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.respond_with(self._answer, scope, receive, send)

    async def respond_with(self, answer: AnswerFunction, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response that ``answer`` makes; the memory of the request is reserved until it is written."""
        reservation = Reservation(self.engine.budget)
        try:
            context = RequestContext(scope["state"]["headers"], scope["state"]["timing"], reservation)
            pieces, fields = await answer(scope["path_params"], CountedReceive(receive, reservation), context)
            await respond(send, pieces, fields)
        finally:
            reservation.release()

    async def _answer(
        self, path_params: Mapping[str, Any], receive: Receive, context: RequestContext
    ) -> tuple[Pieces, Fields]:
        counts, timing, model = self.engine.counts, context.timing, None
        client = ClientWatch(receive)
        counts.in_flight += 1
        try:
            model = self.model(path_params)
            self.engine.check_queue()
            body = await self.receive(receive, context)
            client.start()
            decoding = self.decode(model, body, context)
            request = await run_stages(decoding, self.engine.offload, self.decoding_check(client, context))
            task = request.task
            client.check()
            context.reservation.add(request.response_bytes)
            timing.lap("decode")
            if self.engine.can_run_inline(task):
                outputs = self.engine.run_inline(task)
            else:
                outputs = await client.cancel_on_disconnect(self.engine.run(task), task.cancel)
            timing.record_run(task.queue_ns, task.compute_ns)
            encoding = self.encode(request, outputs, context)
            response = await run_stages(encoding, self.engine.offload, client.check)
            timing.lap("encode")
        except Exception as error:
            self._count_failure(model, error, timing)
            raise
        finally:
            counts.in_flight -= 1
            client.close()
        self._count(model, task, timing)
        return response

    def answer_inline(
        self, path_params: Mapping[str, Any], body: tuple[bytes, Body], context: RequestContext
    ) -> tuple[Pieces, Fields] | None:
        engine, timing, model = self.engine, context.timing, None
        try:
            model = self.model(path_params)
            request, expected_ns = run_inline(self.decode(model, body, context), engine.offload.inline_ns)
            if request is None:
                return None
            task = request.task
            expected_ns += task.expected_ns + self.encoding_ns(request, context)
            if expected_ns > engine.offload.inline_ns or not task.may_run_inline:
                return None
            context.reservation.add(request.response_bytes)
            timing.lap("decode")
            outputs = engine.run_inline(task)
            timing.record_run(0, task.compute_ns)
            response, _ = run_inline(self.encode(request, outputs, context), math.inf)
            timing.lap("encode")
        except Exception as error:
            self._count_failure(model, error, timing)
            raise
        assert response is not None, "it was not limited"
        self._count(model, task, timing)
        return response

    def cache(self, model: Model) -> BoundedCache[Any]:
        """The plans of earlier requests to ``model``."""
        cache = self._caches.get(model)
        if cache is None:
            cache = self._caches.setdefault(model, BoundedCache())
        return cache

    def cut(self, content: bytes) -> Stages[tuple[bytes, Sequence[LongText | LongList]]]:
        """A JSON document that is short enough to be parsed in one call, and the long parts that were cut out.

        Raises:
            TooLarge: it is long without long lists of numbers.
        """
        if not is_large(content):
            return content, ()
        parts: tuple[bytes, Sequence[LongText | LongList]] = yield Stage(
            self.cutting, len(content), cut(content, advice=self.advice)
        )
        return parts

    def compress(self, pieces: Pieces, fields: Fields, context: RequestContext) -> Stages[tuple[Pieces, Fields]]:
        """The body and the header fields of a response, compressed if the Accept-Encoding of the request says so."""
        headers = context.headers
        encoding = self._response_encoding(headers, length_of(pieces)) if self.may_compress(headers) else None
        if encoding is None:
            return pieces, fields
        compressor = deflater(encoding)
        compressed: list[bytes] = []
        for part in slices(pieces):
            compressed.append((yield Stage(self._deflating, len(part), partial(compressor.compress, part))))
            context.reservation.add(len(compressed[-1]))
        compressed.append(compressor.flush())
        return [*compressed], [*fields, (b"content-encoding", encoding.encode())]

    def may_compress(self, headers: Headers) -> bool:
        """Whether a response to a request with these headers is compressed if it is long enough."""
        accept = headers.get(b"accept-encoding", IDENTITY)
        return accept != IDENTITY and bool(self._response_encoding(headers, MIN_BYTES))

    def _response_encoding(self, headers: Headers, length: int) -> str | None:
        accept = headers.get(b"accept-encoding", IDENTITY).decode("latin-1")
        return choose_encoding(accept, self.settings.compress_responses, length)

    def select(self, answer: Answer, outputs: Mapping[str, np.ndarray]) -> Stages[dict[str, np.ndarray]]:
        """The arrays of an answer with options, from the ``outputs`` of the request's run.

        Raises:
            Invalid: weights that cannot be derived from or converted.
        """
        if answer.work <= SMALL_WORK:
            return answer.apply(outputs)
        selected: dict[str, np.ndarray] = yield Stage(self.selecting, answer.work, partial(answer.apply, outputs))
        return selected

    def selecting_ns(self, answer: Answer) -> float:
        """The expected time of ``select`` in nanoseconds."""
        return answer.work if answer.work <= SMALL_WORK else self.selecting.expected(answer.work)

    def writing(self, decimals: int | None) -> CostModel:
        """The cost of numbers as JSON, rounded to ``decimals``; None = exact."""
        return self._writing if decimals is None else self._rounding

    def deadline(self, context: RequestContext, timeout_us: int = 0) -> int | None:
        """Until when the run has to begin, of ``time.perf_counter_ns``."""
        return deadline(context.timing.started_ns, context.headers, self.settings.deadline_seconds, timeout_us)

    def decoding_check(self, client: ClientWatch, context: RequestContext) -> Callable[[], None]:
        """Raises ClientDisconnect or TimedOut where a request need not be decoded further."""

        deadline_ns = self.deadline(context)

        def check() -> None:
            client.check()
            if deadline_ns is not None and time.perf_counter_ns() > deadline_ns:
                self.engine.counts.refused["deadline"] += 1
                raise TimedOut("Request timeout expired: the deadline passed before the request was run")

        return check

    def _count(self, model: Model, task: InferenceTask, timing: Timing) -> None:
        run_rows = task.run_rows if task.counts_run else None
        self.engine.counts.observe((model.name, model.version), self.api, timing, task.rows, run_rows)

    def _count_failure(self, model: Model | None, error: Exception, timing: Timing) -> None:
        version = (model.name, model.version) if model else NO_MODEL
        status, limit = failure(error, is_v2=self.api == "v2")
        self.engine.counts.observe_failure(version, self.api, status, limit, timing.total_ns)
