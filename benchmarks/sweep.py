"""A sweep of activation patching over HTTP, beside hooks on the modules of torch: ``python -m benchmarks.sweep``.

Every position of every layer of a GPT-2 gets the hidden state of another text; the number is a difference of two logits
of the last position. The hooks change ``--batch`` positions in a run, whose head computes the last position alone. Also
a run with one intervention, beside one without. All take turns.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import httpx
import numpy as np
import torch
import transformers

from benchmarks.report.markdown import table
from benchmarks.server import served
from benchmarks.turns import parser_of, seconds_of, take_turns

TOKENS = (100, 200)  # whose logits are compared


def main() -> int:
    options = _options()
    torch.set_num_threads(options.threads)
    rng = np.random.default_rng(0)
    ids, other = (rng.integers(5, 1000, options.positions) for _ in range(2))
    with (
        served(options.repository, "--intra-op-threads", str(options.threads)) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=600) as client,
    ):
        body = {"input_ids": ids.tolist(), "outputs": ["output"]}
        change = {"at": "hidden", "layers": 1, "positions": 1, "scale": 0.5}
        ways: dict[str, Callable[[], Any]] = {
            "sweep": partial(_sweep, client, options.model, ids, other),
            "torch, hooks": partial(_hooks, options, ids, other),
            "a run with an intervention": partial(_run, client, options.model, {**body, "interventions": [change]}),
            "a run without": partial(_run, client, options.model, body),
        }
        results = {name: way() for name, way in ways.items()}  # warm-up
        print(f"largest difference {np.abs(results['sweep'] - results['torch, hooks']).max():.2g}")
        seconds = take_turns(ways, options.repeats, lambda name: seconds_of(ways[name]))
    rows = [[name, f"{median(one):.3f}", f"{min(one):.3f} to {max(one):.3f}"] for name, one in seconds.items()]
    print("\n".join(table([f"{options.model}, {options.positions} positions", "s", "range"], rows)))
    for first, second in (("torch, hooks", "sweep"), ("a run with an intervention", "a run without")):
        ratios = [one / two for one, two in zip(seconds[first], seconds[second], strict=True)]
        print(f"{first} / {second}: {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    return 0


def _sweep(client: httpx.Client, model: str, ids: np.ndarray, other: np.ndarray) -> np.ndarray:
    body = {
        "input_ids": ids.tolist(),
        "intervention": {"at": "hidden", "from": {"input_ids": other.tolist()}},
        "over": {"layers": "all", "positions": "all"},
        "metric": {"logit_difference": list(TOKENS)},
    }
    response = client.post(f"/v1/sweep/{model}", json=body)
    assert response.status_code == 200, response.text
    return np.array(response.json()["values"])


def _run(client: httpx.Client, model: str, body: dict[str, Any]) -> None:
    response = client.post(f"/v1/attention/{model}", json=body)
    assert response.status_code == 200, response.text


@torch.inference_mode()
def _hooks(options: argparse.Namespace, ids: np.ndarray, other: np.ndarray, opened: dict = {}) -> np.ndarray:  # noqa: B006
    """The same numbers in torch."""
    if not opened:
        loaded = transformers.GPT2LMHeadModel.from_pretrained(options.directory, attn_implementation="sdpa")
        opened["model"] = loaded.eval()
    model = opened["model"]
    layers, run = model.transformer.h, torch.from_numpy(ids)[None]
    source = model(torch.from_numpy(other)[None], output_hidden_states=True).hidden_states
    numbers = np.empty((len(layers), len(ids)))
    for layer, module in enumerate(layers):
        for start in range(0, len(ids), options.batch):
            places = range(start, min(start + options.batch, len(ids)))

            def patched(_: Any, inputs: tuple[Any, ...], layer: int = layer, places: range = places) -> tuple[Any, ...]:
                hidden = inputs[0].clone()
                for row, place in enumerate(places):
                    hidden[row, place] = source[layer][0, place]
                return hidden, *inputs[1:]

            hook = module.register_forward_pre_hook(patched)
            last = model.transformer(run.expand(len(places), -1), use_cache=False).last_hidden_state[:, -1]
            hook.remove()
            logits = model.lm_head(last)
            numbers[layer, places.start : places.stop] = (logits[:, TOKENS[0]] - logits[:, TOKENS[1]]).numpy()
    return numbers


def _options() -> argparse.Namespace:
    parser = parser_of("benchmarks.sweep", __doc__)
    add = parser.add_argument
    add("--positions", type=int, default=20, help="tokens of both texts (default 20)")
    add("--batch", type=int, default=16, help="positions in a run with hooks (default 16)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
