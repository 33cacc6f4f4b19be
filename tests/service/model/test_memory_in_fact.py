"""The peak of a run's memory beside its estimate, of each built-in block."""

import json

import pytest

from tests.support.scripts import run_script

PEAKS = """
import ctypes, gc, json, re, sys
from pathlib import Path
import numpy as np
from service.model.loader import open_version
from service.ort.provider import Provider

rng = np.random.default_rng(0)
sizes = {"batch": 1, "heads": 2, "kv_heads": 2, "m": 2000, "n": 2000, "past + n": 2000, "past": 0}

def status(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

def drawn(tensor, limit):
    shape = [min(sizes.get(dim, 64), limit) if isinstance(dim, str) else dim for dim in tensor.shape]
    if tensor.dtype.kind == "i":
        return np.full(shape, 5, tensor.dtype)
    return rng.standard_normal(shape).astype(tensor.dtype)

for folder in sorted(Path(sys.argv[1]).iterdir()):
    for outputs in (["output"], ["weights"]):
        model = open_version(folder / "1", Provider("cpu", "requested"), 2)
        limit = min(model.spec.limits.values(), default=2000)
        inputs = {name: drawn(tensor, limit) for name, tensor in model.inputs.items() if tensor.required}
        estimate = model.estimate(inputs, outputs, model.bind(inputs))
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        before = status("VmHWM")
        model.run(estimate.graph, inputs, outputs)
        print(json.dumps([folder.name, outputs, status("VmHWM") - before, estimate.memory]))
        del model, inputs, estimate
"""
SMALL = 30_000_000  # bytes, of what a run keeps beside tensors of pairs


@pytest.mark.extended
def test_no_block_takes_far_more_than_estimated(repository):
    """additive took twelve times as much: it has a vector for each pair."""
    lines = [json.loads(line) for line in run_script(PEAKS, repository).splitlines()]
    assert len(lines) == 2 * len([*repository.iterdir()])
    too_low = [line for line in lines if line[2] > 1.25 * line[3] + SMALL]
    assert too_low == []
