"""Which tasks are queued: those that will probably be run in time."""

import math
from collections import Counter
from collections.abc import Sequence

from service.base.errors import Overloaded, TooLong
from service.base.messages import seconds_words
from service.engine.queue import Lane
from service.engine.task import InferenceTask
from service.settings import Settings

MAX_WAIT_FRACTION = 0.5  # reject a task whose forecast wait exceeds this fraction of its remaining deadline


class Admission:
    """Checks tasks against the limits of the queue and of a run. Rejections are counted in ``refused``, by limit."""

    def __init__(self, settings: Settings, lanes: Sequence[Lane], refused: Counter[str]) -> None:
        self._max_queue = settings.max_queue
        self._max_run_seconds = settings.max_run_seconds
        self._lanes = lanes
        self._refused = refused

    def check_queue(self, threads: int) -> None:
        """Raises Overloaded where the queue is full; ``threads`` empty each lane."""
        if sum(len(lane.waiting) for lane in self._lanes) >= self._max_queue:
            self._refused["max_queue"] += 1
            seconds = max(lane.waiting.forecast_ns() * lane.slowdown for lane in self._lanes) / threads / 1e9
            raise Overloaded(f"the queue is full (max_queue: {self._max_queue:,})", max(1, math.ceil(seconds)))

    def check(self, task: InferenceTask, lane: Lane, threads: int) -> None:
        """Check whether ``task`` may be queued in ``lane``.

        Raises:
            Overloaded: the queue is full, or the task would probably wait too long for its deadline.
            TooLong: the run, of a block, is forecast to take longer than ``max_run_seconds`` with all its threads.
        """
        if not task.is_accepted:
            self.check_queue(threads)
        limit = self._max_run_seconds
        run_ns = task.forecast_ns if task.has_estimate else task.graph.cost.least(task.size)
        run_ns /= task.graph.threads
        if limit and task.model.spec and run_ns > limit * 1e9:
            task.graph.cost.learn_refusal(task.size)
            about = "about" if task.has_estimate else "at least"
            raise TooLong(
                f"the run would take {about} {seconds_words(run_ns / 1e9)} s, longer than the "
                f"{limit:g} s allowed (max_run_seconds)"
            )
        if task.deadline is not None and lane.waiting:
            wait_ns = lane.waiting.forecast_ns(task.priority_level) * lane.slowdown / threads
            if wait_ns > MAX_WAIT_FRACTION * (task.deadline - task.queued_at_ns):
                self._refused["deadline"] += 1
                raise Overloaded(
                    f"the request would wait {wait_ns / 1e6:,.0f} ms in the queue, too long for its deadline",
                    max(1, math.ceil(wait_ns / 1e9)),
                )
