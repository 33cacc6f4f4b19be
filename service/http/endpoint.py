"""An inference route: decode, run, encode. Raw ASGI, as this path has to be short."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from types import GeneratorType
from typing import Any, ClassVar, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from service.budget import Reservation
from service.cache import BoundedCache
from service.codec.json_slices import LongList, LongText, cut, is_large
from service.codec.steps import Steps, drain
from service.cost import CostModel
from service.engine.counters import NO_MODEL
from service.engine.engine import Engine
from service.engine.task import InferenceTask
from service.http.body import Body, CountedReceive, Headers, receive_body, receive_parts, split
from service.http.compression import IDENTITY, MIN_BYTES, choose_encoding, content_encoding, deflate, inflate
from service.http.envelope import deadline
from service.http.response import Fields, Pieces, join, length_of, respond
from service.memories.access import Memories
from service.memories.stored import Reference, StoredInputs
from service.model.model import Model
from service.repository.repository import Repository
from service.selection.answer import Answer
from service.settings import Settings
from service.timing import Timing

WATCH_DELAY_S = 0.02  # for which a request waits before its client is watched: most are done by then
MIN_BYTE_NS = 2.0  # of a body that is read; dense numbers take five times as long
SMALL_WORK = 20_000  # of an answer with options that is computed at once; about nanoseconds
T = TypeVar("T")


@dataclass(slots=True)
class Stage:
    """Part of decoding or encoding, whose time ``cost`` predicts by its ``size``.

    A generator of steps is run on the event loop, between others; a function in a thread, unless it is short.
    """

    cost: CostModel
    size: int
    work: Steps[Any] | Callable[[], Any]


@dataclass(slots=True)
class RequestContext:
    """What belongs to a request beside its body."""

    headers: Headers
    timing: Timing
    reservation: Reservation  # of the memory budget


Stages = Generator[Stage, Any, T]  # each yield is sent the result of its stage


class DecodedRequest(Protocol):
    """What an endpoint decodes a request to."""

    @property
    def task(self) -> InferenceTask:
        """The run that it needs."""

    @property
    def response_bytes(self) -> int:
        """Upper bound on the memory that its response takes, as arrays and as text, in bytes."""


R = TypeVar("R", bound=DecodedRequest)


class InferenceEndpoint(ABC, Generic[R]):
    """What the APIs have in common: decode, run, encode, and count. An API gives ``decode`` and ``encode``."""

    api: ClassVar[str]  # its name in metrics
    prefix: ClassVar[str]  # of its paths

    def __init__(self, repository: Repository, settings: Settings, engine: Engine, memories: Memories) -> None:
        self.repository = repository
        self.settings = settings
        self.engine = engine
        self.memories = memories
        self.cutting, self.decoding, self.reading = (CostModel(MIN_BYTE_NS) for _ in range(3))
        self.selecting, self.preparing = CostModel(), CostModel()
        self._writing, self._rounding = CostModel(), CostModel()
        self._deflating = CostModel()
        self._caches: WeakKeyDictionary[Model, BoundedCache[Any]] = WeakKeyDictionary()

    @abstractmethod
    def model(self, path_params: Mapping[str, Any]) -> Model:
        """The model that the path names.

        Raises:
            NotFound, NotReady: there is none, or not yet.
        """

    @abstractmethod
    def json_length(self, headers: Headers, length: int) -> int:
        """How many bytes of a body of ``length`` bytes are JSON.

        Raises:
            HeedError: anything that is wrong with the headers.
        """

    @abstractmethod
    async def receive(self, receive: Receive, context: RequestContext) -> tuple[bytes, Body]:
        """The JSON of the body and the bytes behind it, decompressed. The timing starts when the body has come.

        Raises:
            HeedError: anything that is wrong with the headers, the length or the compression.
            ClientDisconnect: the client went before the end of the body.
        """

    async def receive_body(
        self, receive: Receive, context: RequestContext, json_length: int | None
    ) -> tuple[bytes, Body]:
        """As ``receive``; ``json_length`` is that of the JSON in the decompressed body, None: all of it."""
        headers, longest = context.headers, self.settings.max_body_bytes
        encoding = content_encoding(headers)
        if encoding is None and json_length is not None:
            parts = await receive_parts(receive, headers, longest, json_length)
            context.timing.start()
            return parts
        body = await receive_body(receive, headers, longest)
        context.timing.start()
        if encoding is not None:
            body = await inflate(body, encoding, longest, context.reservation, self.engine)
        return split(body, len(body) if json_length is None else json_length)

    @abstractmethod
    def decode(self, model: Model, body: tuple[bytes, Body], context: RequestContext) -> Stages[R]:
        """The request whose JSON, and the bytes behind it, are ``body``.

        The memory that it takes beside its body is reserved before it is taken.

        Raises:
            HeedError: anything that is wrong with it.
        """

    def stored(self, reference: Reference | None, model: Model, context: RequestContext) -> Stages[StoredInputs | None]:
        """The inputs that are in the memory which a request names, if it names one.

        Raises:
            NotFound, Gone, Invalid, Conflict: as ``Memories.get`` and ``Memories.inputs``.
        """
        if reference is None:
            return None
        memory = yield Stage(self.memories.finding, 1, partial(self.memories.get, reference.id, context.headers))
        return self.memories.inputs(memory, reference, model, context.reservation)

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
        reservation = Reservation(self.engine.budget)
        try:
            context = RequestContext(scope["state"]["headers"], scope["state"]["timing"], reservation)
            pieces, fields = await self._answer(scope["path_params"], CountedReceive(receive, reservation), context)
            await respond(send, pieces, fields)
        finally:
            reservation.release()

    async def _answer(
        self, path_params: Mapping[str, Any], receive: Receive, context: RequestContext
    ) -> tuple[Pieces, Fields]:
        counts, timing, model = self.engine.counts, context.timing, None
        counts.in_flight += 1
        try:
            model = self.model(path_params)
            self.engine.check_queue()
            body = await self.receive(receive, context)
            request = await self.run_stages(self.decode(model, body, context))
            task = request.task
            context.reservation.add(request.response_bytes)
            timing.lap("decode")
            if self.engine.can_run_inline(task):
                outputs = self.engine.run_inline(task)
            else:
                outputs = await run_unless_disconnected(self.engine, task, receive)
            timing.record_run(task.queue_ns, task.compute_ns)
            response = await self.run_stages(self.encode(request, outputs, context))
            timing.lap("encode")
        except Exception as error:
            self._count_failure(model, error, timing)
            raise
        finally:
            counts.in_flight -= 1
        self._count(model, task, timing)
        return response

    def answer_inline(
        self, path_params: Mapping[str, Any], body: tuple[bytes, Body], context: RequestContext
    ) -> tuple[Pieces, Fields] | None:
        """The body and the header fields of a response that takes a short time; None for a request that was not run.

        Raises:
            Exception: as ``__call__``; the request failed and must not be run again.
        """
        engine, timing, model = self.engine, context.timing, None
        try:
            model = self.model(path_params)
            request, expected_ns = self._drain(self.decode(model, body, context))
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
            response, _ = self._drain(self.encode(request, outputs, context), is_limited=False)
            timing.lap("encode")
        except Exception as error:
            self._count_failure(model, error, timing)
            raise
        assert response is not None, "it was not limited"
        self._count(model, task, timing)
        return response

    def cache(self, model: Model) -> BoundedCache[Any]:
        """What is known of earlier requests to ``model``."""
        cache = self._caches.get(model)
        if cache is None:
            cache = self._caches.setdefault(model, BoundedCache())
        return cache

    def cut(self, content: bytes) -> Stages[tuple[bytes, Sequence[LongText | LongList]]]:
        """A JSON document that is short enough to be parsed in one call, and the long parts that were cut out of it.

        Raises:
            TooLarge: it is long without long lists of numbers.
        """
        if not is_large(content):
            return content, ()
        parts: tuple[bytes, Sequence[LongText | LongList]] = yield Stage(self.cutting, len(content), cut(content))
        return parts

    def compress(self, pieces: Pieces, fields: Fields, headers: Headers) -> Stages[tuple[Pieces, Fields]]:
        """The body and the header fields of a response, compressed if a request with ``headers`` asks for it."""
        encoding = self._response_encoding(headers, length_of(pieces)) if self.may_compress(headers) else None
        if encoding is None:
            return pieces, fields
        whole = join(pieces)
        compressed: bytes = yield Stage(self._deflating, len(whole), partial(deflate, whole, encoding))
        return [compressed], [*fields, (b"content-encoding", encoding.encode())]

    def may_compress(self, headers: Headers) -> bool:
        """Whether a response to a request with these headers is compressed if it is long enough."""
        accept = headers.get(b"accept-encoding", IDENTITY)
        return accept != IDENTITY and bool(self._response_encoding(headers, MIN_BYTES))

    def _response_encoding(self, headers: Headers, length: int) -> str | None:
        accept = headers.get(b"accept-encoding", IDENTITY).decode("latin-1")
        return choose_encoding(accept, self.settings.compress_responses, length)

    def select(self, answer: Answer, outputs: dict[str, np.ndarray]) -> Stages[dict[str, np.ndarray]]:
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

    async def run_stages(self, stages: Stages[T]) -> T:
        """The result of ``stages``, each run where it keeps others waiting least."""
        engine, result = self.engine, None
        with closing(stages):
            while True:
                try:
                    stage = stages.send(result)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                if isinstance(stage.work, GeneratorType):
                    result = await engine.offload.run_cooperatively(stage.cost, stage.size, stage.work)
                else:
                    result = await engine.offload.inline_or_offload(stage.cost, stage.size, stage.work)  # type: ignore[arg-type]

    def _drain(self, stages: Stages[T], is_limited: bool = True) -> tuple[T | None, float]:
        """The result of ``stages``, run here and now, and what they were expected to take, in nanoseconds.

        The result is None where they are expected to take too long for the event loop.
        """
        result, expected_ns, start = None, 0.0, time.perf_counter_ns()
        while True:
            try:
                stage = stages.send(result)
            except StopIteration as end:
                return end.value, expected_ns
            if is_limited:
                expected_ns += stage.cost.expected(stage.size)
                if expected_ns > self.engine.offload.inline_ns:
                    stages.close()
                    return None, expected_ns
            work = stage.work
            try:
                result = drain(work) if isinstance(work, GeneratorType) else work()  # type: ignore[operator]
            except Exception:
                stage.cost.learn_failure(stage.size, time.perf_counter_ns() - start)
                raise

    def _count(self, model: Model, task: InferenceTask, timing: Timing) -> None:
        run_rows = task.run_rows if task.counts_run else None
        self.engine.counts.observe((model.name, model.version), self.api, timing, task.rows, run_rows)

    def _count_failure(self, model: Model | None, error: Exception, timing: Timing) -> None:
        version = (model.name, model.version) if model else NO_MODEL
        self.engine.counts.observe_failure(version, self.api, error, timing.total_ns)


async def run_unless_disconnected(engine: Engine, task: InferenceTask, receive: Receive) -> dict[str, np.ndarray]:
    """The outputs of ``task``. It is cancelled if the client disconnects while it is queued; a run is not interrupted.

    Raises:
        ClientDisconnect: the client disconnected.
        Exception: what ``engine.run`` raises.
    """
    is_disconnected = False
    watch: asyncio.Task[Message] | None = None

    def begin_to_watch() -> None:
        nonlocal watch
        watch = asyncio.ensure_future(receive())
        watch.add_done_callback(cancel_on_disconnect)

    def cancel_on_disconnect(watched: "asyncio.Task[Message]") -> None:
        nonlocal is_disconnected
        if not watched.cancelled() and watched.result()["type"] == "http.disconnect" and task.future is not None:
            is_disconnected = True
            task.future.cancel()

    timer = asyncio.get_running_loop().call_later(WATCH_DELAY_S, begin_to_watch)
    try:
        return await engine.run(task)
    except asyncio.CancelledError:
        if is_disconnected:
            raise ClientDisconnect from None
        raise
    finally:
        timer.cancel()
        if watch is not None:
            watch.cancel()
