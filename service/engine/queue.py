"""Tasks that wait, the most urgent first, and the threads that run them."""

from collections.abc import Collection, Hashable, Sequence
from math import inf
from queue import SimpleQueue

from service.engine.task import InferenceTask, TaskKind

SLOWDOWN_WEIGHT = 0.1  # of a run in the moving average of a lane's slowdown

Tasks = dict[InferenceTask, None]  # in the order of their arrival


class Queue:
    """Equally urgent tasks of the three kinds take turns, and of a kind the one that came first is first.

    A step of a generation would otherwise wait for all prompts of other clients, and a new request for all prompts of
    a list, and for a step of each generation. Not thread-safe: its user has a lock.
    """

    def __init__(self) -> None:
        self._tasks: dict[tuple[int, TaskKind], Tasks] = {}  # by priority level
        self._turns = [*TaskKind]  # whose task was taken last is last
        self._candidates: dict[tuple[int, Hashable], Tasks] = {}  # by priority level, and stack key
        self._forecasts: dict[int, float] = {}  # by priority level: nanoseconds that its tasks will take, about

    def __len__(self) -> int:
        return sum(map(len, self._tasks.values()))

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def put(self, task: InferenceTask) -> None:
        level = task.priority_level
        self._tasks.setdefault((level, task.kind), {})[task] = None
        if task.stack_key is not None:
            self._candidates.setdefault((level, task.stack_key), {})[task] = None
        self._forecasts[level] = self._forecasts.get(level, 0) + _known_ns(task)

    def drop(self, task: InferenceTask) -> bool:
        """Remove the task; False where it is not in the queue."""
        level = task.priority_level
        kind = level, task.kind
        tasks = self._tasks.get(kind, {})
        if task not in tasks:
            return False
        del tasks[task]
        self._turns.remove(task.kind)
        self._turns.append(task.kind)
        self._forecasts[level] -= _known_ns(task)
        if not tasks:
            del self._tasks[kind]
            if all(other != level for other, _ in self._tasks):
                del self._forecasts[level]
        if task.stack_key is not None:
            candidates = self._candidates[level, task.stack_key]
            del candidates[task]
            if not candidates:
                del self._candidates[level, task.stack_key]
        return True

    def forecast_ns(self, priority_level: float = inf) -> float:
        """Nanoseconds that tasks of this level, and more urgent ones, will take; a task without estimate counts 0."""
        return sum(forecast for level, forecast in self._forecasts.items() if level <= priority_level)

    def first(self) -> InferenceTask:
        """Raises ValueError where the queue is empty."""
        level, kind = min(self._tasks, key=lambda kind: (kind[0], self._turns.index(kind[1])))
        return next(iter(self._tasks[level, kind]))

    def batch_candidates(self, task: InferenceTask) -> Collection[InferenceTask]:
        """The tasks as urgent as ``task`` with its stack key; none where it is None."""
        return self._candidates.get((task.priority_level, task.stack_key), {}) if task.stack_key is not None else ()

    def clear(self) -> list[InferenceTask]:
        """Remove and return all tasks."""
        tasks = [task for same_level in self._tasks.values() for task in same_level]
        for task in tasks:
            self.drop(task)
        return tasks


class Lane:
    """A queue, and the state of the threads that empty it. Its user has a lock."""

    def __init__(self) -> None:
        self.waiting = Queue()
        self.running = 0  # runs in progress
        # Measured / forecast run time, moving average: above 1 on a busy machine, below 1 when tasks share runs.
        self.slowdown = 1.0
        self.idle_threads = 0  # that wait in ``wakeups``
        self.excess_threads = 0  # that are to end
        self.wakeups: SimpleQueue[None] = SimpleQueue()

    def learn(self, tasks: Sequence[InferenceTask], taken_ns: int) -> None:
        """Update the slowdown: a run of ``tasks`` took a thread so long."""
        forecast = sum(task.forecast_ns for task in tasks)
        if forecast and all(task.has_estimate for task in tasks):
            self.slowdown += SLOWDOWN_WEIGHT * (taken_ns / forecast - self.slowdown)

    def wake_one(self) -> None:
        """Wake an idle thread if a task waits."""
        if self.idle_threads and self.waiting:
            self.idle_threads -= 1
            self.wakeups.put(None)

    def resize(self, threads: int, before: int) -> None:
        """End threads where there are to be fewer than ``before``."""
        self.excess_threads += max(0, before - threads)
        for _ in range(min(self.excess_threads, self.idle_threads)):
            self.idle_threads -= 1
            self.wakeups.put(None)


def _known_ns(task: InferenceTask) -> float:
    return task.forecast_ns if task.has_estimate else 0.0
