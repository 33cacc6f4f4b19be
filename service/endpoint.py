"""A route that carries tensors: decode, run, encode. Raw ASGI, as this is the way that has to be short."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from starlette.types import Receive, Scope, Send

from service.body import Body, Headers
from service.cost import Cost
from service.counts import NO_MODEL
from service.deadline import deadline
from service.engine import Engine
from service.hang_up import run_watched
from service.holding import Holding
from service.model import Model
from service.repository import Repository
from service.respond import Piece, respond
from service.settings import Settings
from service.timing import Timing
from service.work import Work

Pieces = list[Piece]
Fields = list[tuple[bytes, bytes]]  # of an HTTP header
JSON: Fields = [(b"content-type", b"application/json")]


class Endpoint(ABC):
    """What the faces have in common: the model is looked up, its statistics are kept, the engine runs the work."""

    face: ClassVar[str]

    def __init__(self, repository: Repository, settings: Settings, engine: Engine) -> None:
        self.repository = repository
        self.settings = settings
        self.engine = engine
        self.decoding, self.preparing, self.encoding = Cost(), Cost(), Cost()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, timing = scope["state"]["headers"], scope["state"]["timing"]
        counts, model = self.engine.counts, None
        counts.in_flight += 1
        holding = Holding(self.engine, receive)
        try:
            model = self.model(scope["path_params"])
            self.engine.must_have_room()
            work, pieces, fields = await self.answer(model, headers, holding, timing)
        except Exception as error:
            if model:
                model.statistics.failed(timing.total)
            counts.observe_failure(model.name if model else NO_MODEL, self.face, error)
            raise
        finally:
            counts.in_flight -= 1
            holding.end()
        self._count(model, work, timing)
        await respond(send, pieces, fields)

    @abstractmethod
    def model(self, path: Mapping[str, Any]) -> Model:
        """The model that the path names.

        Raises:
            NotFound, NotReady: there is none, or not yet.
        """

    @abstractmethod
    async def answer(
        self, model: Model, headers: Headers, receive: Receive, timing: Timing
    ) -> tuple[Work, Pieces, Fields]:
        """The work that was done for a request, and the body and the header of its answer.

        Raises:
            HeedError: anything that is wrong with it.
        """

    def deadline(self, headers: Headers, timing: Timing, asked: int = 0) -> int | None:
        """Until when a run has to begin, of ``time.perf_counter_ns``; ``asked`` is a parameter, in microseconds."""
        return deadline(timing.began, headers, self.settings.deadline_seconds, asked)

    def at_once(
        self, path: Mapping[str, Any], headers: Headers, content: bytes, attached: Body, timing: Timing
    ) -> tuple[Pieces, Fields] | None:
        """The body and the header of an answer that is right, and takes no time worth a task; else None."""
        try:
            model = self.model(path)
            answer = self.short(model, headers, content, attached, timing)
        except Exception:
            return None  # whatever it is, it will come again on the way of every request, and be answered there
        if answer is None:
            return None
        work, pieces, fields = answer
        self._count(model, work, timing)
        return pieces, fields

    def _count(self, model: Model, work: Work, timing: Timing) -> None:
        """What was answered, in the metrics and in the model's statistics."""
        self.engine.counts.observe(model.name, self.face, timing)
        of_run = work.run_rows if work.leads else None
        model.statistics.succeeded(work.rows, of_run, timing.total, timing.spent)

    @abstractmethod
    def first(self, headers: Headers, length: int) -> int:
        """How many of a body's bytes are JSON.

        Raises:
            HeedError: anything that is wrong with the header.
        """

    @abstractmethod
    def short(
        self, model: Model, headers: Headers, content: bytes, attached: Body, timing: Timing
    ) -> tuple[Work, Pieces, Fields] | None:
        """As ``answer``, if all of it can be done here and now; None, or any exception, if it cannot."""

    async def run(self, work: Work, timing: Timing, receive: Receive) -> dict[str, np.ndarray]:
        """The outputs of ``work``: worked out here where that is short, else in a thread, in its turn."""
        engine = self.engine
        found = engine.run_here(work) if engine.fits_here(work) else await run_watched(engine, work, receive)
        timing.lap_as(work.waited, work.computed)
        return found
