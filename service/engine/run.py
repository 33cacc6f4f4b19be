"""One run of ONNX Runtime: a task alone, or several that share it because together they are faster."""

import time
from collections.abc import Iterable, Sequence
from functools import partial

from service.engine import batch
from service.engine.batch import Arrays
from service.engine.task import InferenceTask
from service.model.graph import Graph, RunOptions
from service.model.padding import length_groups

MAX_BATCH_ROWS = 1024
MAX_BATCH_TIME_RATIO = 8  # a shared run takes at most this many times what each task saves: the first waits for all
MIN_TERMINABLE_NS = 50e6  # forecast from which a run can be ended by another thread

Outcome = tuple[InferenceTask, Arrays | BaseException]


def run_alone(task: InferenceTask, has_threads: bool = True) -> Arrays:
    """The outputs of ``task``, from a run of its own in this thread; its graph's cost learns.

    Without ``has_threads`` a long run uses no others.

    Raises:
        Exception: what ``Model.run`` raises.
    """
    if task.stored is not None:
        task.stored.verify()
    estimate, model = task.estimate, task.model
    cost = estimate.graph.cost
    is_timed = cost.is_due(estimate.size)
    graph = estimate.graph.for_size(estimate.size) if has_threads else estimate.graph
    threads = 1 if graph is estimate.graph else estimate.graph.threads
    groups = length_groups(model.signature, task.inputs, task.outputs) if task.stored is None else None
    # The clock of this thread does not count those of others, and groups are shorter than a run of all rows.
    is_timed = is_timed and threads == 1 and groups is None
    if task.forecast_ns > MIN_TERMINABLE_NS:
        task.options = RunOptions()
    start, clock = time.perf_counter_ns(), model.clock() if is_timed else 0
    try:
        if task.stored is not None:
            execute = partial(_execute, task, graph)
            outputs = task.stored.run(graph, execute, task.inputs, task.outputs, task.options)
        elif groups is not None:
            outputs = groups.run(partial(_execute, task, graph), task.inputs, task.outputs)
        else:
            outputs = model.run(graph, task.inputs, task.outputs, task.options)
    except Exception:
        if task.options is not None and task.options.terminate:
            cost.learn_end(estimate.size, threads * (time.perf_counter_ns() - start))
        raise
    task.compute_ns = time.perf_counter_ns() - start
    if is_timed:
        cost.learn(estimate.size, model.clock() - clock)
    elif threads > 1:
        cost.learn_bounds(estimate.size, task.compute_ns, task.compute_ns * threads)
    task.run_rows, task.counts_run = task.batch, True
    return outputs


def _execute(task: InferenceTask, graph: Graph, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
    return task.model.run(graph, inputs, outputs, task.options)


class Run:
    """The tasks of one run; further ones may join the first."""

    def __init__(self, first: InferenceTask) -> None:
        self.tasks = [first]
        self.graph: Graph = first.graph
        self.rows = first.batch
        self.memory = first.memory  # bytes, about
        self.began_ns = 0  # of time.perf_counter_ns
        self.is_overdue = False  # its tasks were refused, as it takes too long
        self.has_threads = True  # it may use more than its own: no other run needs the CPUs
        self._size = first.size
        self._expected_ns = first.forecast_ns

    def stack(self, others: Iterable[InferenceTask], max_tasks: int, max_memory: int, saved_ns: float) -> None:
        """Let ``others``, which have the same stack key, join, up to ``max_tasks`` and ``max_memory`` bytes.

        ``saved_ns`` is the time that each task saves by sharing a run.
        """
        for task in others:
            if task is self.tasks[0]:
                continue
            rows, size, memory = self.rows + task.batch, self._size + task.size, self.memory + task.memory
            expected = min(self._expected_ns + task.forecast_ns, self.graph.cost.expected(size))
            is_full = len(self.tasks) >= max_tasks or rows > MAX_BATCH_ROWS or memory > max_memory
            if is_full or expected > MAX_BATCH_TIME_RATIO * saved_ns:
                return
            self.tasks.append(task)
            self.rows, self._size, self.memory, self._expected_ns = rows, size, memory, expected

    def execute(self) -> Sequence[Outcome]:
        """The outputs of each task, or the exception of its run. Where a shared run fails, each task is run alone."""
        if len(self.tasks) > 1:
            try:
                return list(zip(self.tasks, self._run_together(), strict=True))
            except Exception as error:  # perhaps of one task: its own run says so
                if SharedRunOptions(self.tasks).terminate:
                    return [(task, error) for task in self.tasks]
        return [(task, self._outputs_or_error(task)) for task in self.tasks]

    def _run_together(self) -> Sequence[Arrays]:
        model = self.tasks[0].model
        start, clock = time.perf_counter_ns(), model.clock()
        batching = model.batching
        assert batching is not None, "tasks that share a run have a model with batching rules"
        inputs = batch.stack(self.tasks, batching)
        graph, options = self.graph, None
        if graph.shared:
            graph = graph.for_size(self._size) if self.has_threads else graph
            options = SharedRunOptions(self.tasks)
            for task in self.tasks:
                task.options = RunOptions()
        joined = model.run(graph, inputs, self.tasks[0].outputs, options)
        outputs = batch.split(joined, self.tasks, batching)
        if graph is self.graph:
            graph.cost.learn(self._size, model.clock() - clock)
        taken_ns = time.perf_counter_ns() - start
        for task in self.tasks:
            task.compute_ns, task.run_rows, task.counts_run = taken_ns, self.rows, task is self.tasks[0]
        return outputs

    def _outputs_or_error(self, task: InferenceTask) -> Arrays | Exception:
        try:
            return run_alone(task, self.has_threads)
        except Exception as error:
            return error


class SharedRunOptions:
    """The options of a run that several tasks share: it ends when all of them are ended."""

    def __init__(self, tasks: Sequence[InferenceTask]) -> None:
        self._tasks = tasks

    @property
    def terminate(self) -> bool:
        return all(task.options is not None and task.options.terminate for task in self._tasks)
