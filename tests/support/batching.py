"""Tasks that share a run: what says that they may, and their answers."""

from service.engine import batch
from service.engine.task import InferenceTask


def foreign_task(model, inputs, outputs):
    """A task of a model that is no block; all its inputs have as many rows."""
    return InferenceTask(model, model.estimate(inputs, outputs, {}), inputs, outputs, len(next(iter(inputs.values()))))


def stack_key(task):
    return task.model.batching.stack_key(task.graph, task.inputs, task.outputs)


def stacked(tasks):
    """The answer of each task, of one run of all."""
    model = tasks[0].model
    joined = model.run(tasks[0].graph, batch.stack(tasks, model.batching), tasks[0].outputs)
    return batch.split(joined, tasks, model.batching)
