"""Causal decoding token by token, with the keys and values of past tokens, gives the same result as one request.

usage: .venv/bin/python examples/decoding.py      (needs a server: make serve)
"""

import sys

import numpy as np

from heed_client import Client, HeedError

LENGTH = 12

try:
    with Client() as heed:
        block = heed.describe("grouped_query")
        x = np.random.default_rng(0).standard_normal((LENGTH, block.inputs["x"].shape[-1]), dtype=np.float32)
        whole = heed.attend(block.block, x=x, is_causal=True)

        past: dict[str, np.ndarray] = {}
        for token in range(LENGTH):
            step = heed.attend(
                block.block,
                x=x[token : token + 1],
                **past,
                is_causal=True,
                outputs=["output", "weights", "present_key", "present_value"],
            )
            past = {"past_key": step.present_key, "past_value": step.present_value}
            keys = step.weights.shape[-1]
            difference = np.abs(step.output[0] - whole.output[token]).max()
            print(f"token {token}: attends to {keys}, largest difference from one request {difference:.1g}")
            assert difference <= 2 * block.tolerance["output"]
            weights = whole.weights[:, token, : token + 1]
            assert np.abs(step.weights[:, 0] - weights).max() <= 2 * block.tolerance["weights"]
except HeedError as error:
    sys.exit(str(error))
