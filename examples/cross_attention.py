"""Cross-attention over memories of different lengths: a padded batch gives the same results as single requests.

usage: .venv/bin/python examples/cross_attention.py      (needs a server: make serve)
"""

import sys

import numpy as np

from heed_client import Client, HeedError

LENGTHS = [3, 8, 5]  # of the memories; the others are padded to the longest

try:
    with Client() as heed:
        block = heed.describe("cross_attention")
        x_width, memory_width = (block.inputs[name].shape[-1] for name in ("x", "memory"))
        rng = np.random.default_rng(0)
        x = rng.standard_normal((len(LENGTHS), 4, x_width), dtype=np.float32)
        memory = rng.standard_normal((len(LENGTHS), max(LENGTHS), memory_width), dtype=np.float32)

        batch = heed.attend(block.block, x=x, memory=memory, nonpad_kv_seqlen=LENGTHS)
        for row, length in enumerate(LENGTHS):
            single = heed.attend(block.block, x=x[row], memory=memory[row, :length])
            padding = batch.weights[row, ..., length:]
            difference = np.abs(batch.output[row] - single.output).max()
            print(f"row {row}: {length} of {max(LENGTHS)} are real, weight on padding {padding.sum():.1f}, ", end="")
            print(f"largest difference from a single request {difference:.1g}")
            assert not padding.any()
            assert difference <= 2 * block.tolerance["output"]
except HeedError as error:
    sys.exit(str(error))
