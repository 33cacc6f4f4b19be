"""Memory follows what runs: it does not grow with changing shapes, nor with the number of models, and is given back."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = """
import gc, random, sys
from pathlib import Path
import numpy as np
from service.machine import trim_heap
from service.ort.provider import shrink_arena
from service.repository.repository import Repository
from service.settings import Settings

MIB = 1 << 20
repository = Repository(Settings(model_repository=Path(sys.argv[1]), provider="cpu", intra_op_threads=1).sized())
repository.open()
repository.load()
draw = random.Random(1)

def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // MIB

def ask(block, m, n, heads=1):
    model = repository.block(block)
    lengths = {"query": m, "key": n, "value": n}
    inputs = {name: np.ones((1, heads, length, 16), np.float32) for name, length in lengths.items()}
    need = model.estimate(inputs, ["output", "weights"], model.bind(inputs))
    model.run(need.graph, inputs, ["output", "weights"])

def changing(times):
    for _ in range(times):
        ask("scaled_dot_product", draw.randint(1, 200), draw.randint(1, 200), draw.choice([1, 2, 4, 8]))

changing(500)
settled = resident()
changing(3000)
assert resident() - settled < 8, ("changing shapes", settled, resident())
ask("scaled_dot_product", 2048, 2048, 8)
one = resident()
for block in ("dot_product", "cosine", "multiplicative"):
    ask(block, 2048, 2048, 8)
assert resident() - one < 0.3 * (one - settled), ("more models", settled, one, resident())
shrink_arena(repository.provider)
trim_heap()
assert resident() - settled < 32, ("freed", settled, one, resident())
"""


@pytest.mark.extended
def test_of_changing_shapes_and_models(repository):
    subprocess.run([sys.executable, "-c", SCRIPT, str(repository)], check=True, cwd=ROOT)
