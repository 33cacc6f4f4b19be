"""``heed run --generate``: the text as it arrives, the answer as JSON, and the attention of the tokens as a matrix."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from heed_client.block import Block
from heed_client.command import files
from heed_client.command.matrix import Labels, Matrices, matrices
from heed_client.generation.generation import Generation

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # characters that would change a terminal, not \t and \n
REDUCED = {"layers": "reduce_layers", "heads": "reduce_heads"}


def drawn_output(block: Block) -> str:
    """The name of the weights to draw: with two stacks, those to the encoder's tokens."""
    return "cross_weights" if "cross_weights" in block.outputs else "weights"


def with_weights(inputs: Mapping[str, Any], drawn: str) -> dict[str, Any]:
    """``inputs`` that also request a row of weights for each token, over the chosen layers and heads."""
    outputs = [*dict.fromkeys([*inputs.get("outputs", ()), drawn])]
    means = dict.fromkeys(REDUCED.values(), "mean")
    if inputs.get("average_attn_weights"):
        del means["reduce_heads"]
    return {**means, **inputs, "outputs": outputs}


def print_text(generation: Generation, has_ids: bool = False) -> None:
    """Print the text as it arrives, and on a terminal why it ends and how long it took.

    After a prompt of ids (``has_ids``), tokens without a name are printed as ids: the model may have no tokenizer.
    """
    is_begun, is_terminal = False, sys.stdout.isatty()
    try:
        for token in generation:
            is_id = has_ids and token.token is None
            text = f"{' ' * is_begun}{token.id}" if is_id else token.text
            print(CONTROL.sub("", text) if is_terminal else text, end="", flush=True)
            is_begun = True
    finally:
        if is_begun:
            print(flush=True)
    if is_terminal:
        print(f"\n{_ending(generation)}")


def _ending(generation: Generation) -> str:
    count = len(generation.generated)
    first_ms, total_ms = generation.first_token_ms or 0.0, generation.total_ms or 0.0
    rest = f", then {(total_ms - first_ms) / (count - 1):.3g} ms each" if count > 1 else ""
    return f"{count} token{'s' * (count != 1)} ({generation.finish_reason}), the first after {first_ms:.3g} ms{rest}"


def document(generation: Generation) -> dict[str, Any]:
    """The answer as JSON values, which are lists for several texts."""
    tokens = {"tokens": generation.prompt.tokens} if generation.prompt else {}
    own = {name: getattr(generation, name) for name in ("text", "finish_reason", "usage")}
    return {**tokens, **own, "generated": _fields(generation.generated)}


def _fields(token: Any) -> Any:
    """The JSON fields of a token, or of each token in nested lists."""
    if isinstance(token, list):
        return [_fields(one) for one in token]
    names = ("id", "token", "text", "offset", "logprob", *(["next_tokens"] if token.next_tokens else []))
    own = {name: getattr(token, name) for name in names}
    own["logprob"] = own["logprob"] if np.isfinite(token.logprob) else None
    if token.lens is not None:
        lens = {name: getattr(token.lens, name) for name in ("indices", "probabilities", "ranks")}
        own["lens"] = files.to_lists(lens) | {"predicted": token.lens.predicted}
    return own | files.to_lists(token.outputs)


def looked(generation: Generation, inputs: Mapping[str, Any], drawn: str, at: Sequence[int], given: Labels) -> Matrices:
    """A matrix with a row for each token: its weights to all tokens before it, or to those of the encoder.

    Raises:
        ValueError: the index or the labels do not fit; the message begins with ``at`` or ``labels``.
    """
    rows = [np.asarray(token.outputs[drawn], np.float32) for token in generation.generated]
    count = max(row.shape[-1] for row in rows)
    weights = np.concatenate(
        [np.pad(row, [(0, 0)] * (row.ndim - 1) + [(0, count - row.shape[-1])]) for row in rows], -2
    )
    new = [token.token or str(token.id) for token in generation.generated]
    keys = [*_prompt(generation, inputs), *(new[:-1] if drawn == "weights" else [])]
    if len(keys) != count:  # not those of the tokenizer, such as a spectrogram's or pooled ones
        keys = [*map(str, range(count))]
    name = ", ".join([drawn, *(_place(axis, inputs) for axis in REDUCED)])
    drawn_matrices = matrices(weights, at, [Labels(given.queries or new, given.keys or keys)], name=name)
    return replace(drawn_matrices, has_all_rows=True)


def _place(axis: str, inputs: Mapping[str, Any]) -> str:
    """``layer 3``, ``mean over layers 0:3``, or ``mean over all layers``."""
    chosen, reduction = inputs.get(axis), inputs.get(REDUCED[axis], "mean")
    if isinstance(chosen, int | str) and str(chosen).removeprefix("-").isdecimal():
        return f"{axis.removesuffix('s')} {chosen}"
    return f"{reduction} over {f'all {axis}' if chosen is None else f'{axis} {chosen}'}"


def _prompt(generation: Generation, inputs: Mapping[str, Any]) -> list[str]:
    """The tokens of the prompt, or their ids."""
    if generation.prompt is not None:
        return list(generation.prompt.tokens)
    return [*map(str, np.ravel(inputs.get("input_ids", ())))]
