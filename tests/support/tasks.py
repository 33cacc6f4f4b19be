"""Inference tasks over the built-in blocks, as the engine gets them."""

from models.catalogue import BLOCKS
from models.examples import OPTIONS, draw
from service.engine.task import InferenceTask
from service.model.loader import load_version
from service.ort.provider import Provider, open_session

HEADS = {"heads": 2, "kv_heads": 1, "layers": 1, "d_k": 5, "d_v": 3, "past": 3}


def opened(folder, batch_models="") -> object:
    return load_version(folder, Provider("cpu", "requested"), 1, 64, batch_models)


def open_on_cpu(file, _provider, threads, prepack=True):
    """``service.ort.provider.open_session`` where a provider called cuda has no GPU."""
    return open_session(file, Provider("cpu", "requested"), threads, prepack)


def work_of(model, inputs, outputs=None):
    sizes = model.bind(inputs)
    outputs = list(model.outputs) if outputs is None else outputs
    return InferenceTask(model, model.estimate(inputs, outputs, sizes), inputs, outputs)


def drawn(model, m, n, rows, option, seed, outputs=None):
    sizes = HEADS | {"batch": rows, "m": m, "n": n}
    return work_of(model, draw(BLOCKS[model.name], sizes, OPTIONS[option], seed), outputs)


def options_of(name):
    return [key for key, given in OPTIONS.items() if {*given.tensors, *given.parameters} <= BLOCKS[name].inputs.keys()]
