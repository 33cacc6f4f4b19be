"""Compare steps of generation with the model in float64, which computes each whole sequence at once.

The tokens are the graph's own, greedily chosen. Each must be the most probable one in float64 too, up to the budget of
the logits; by induction the sequence is then the one that transformers generates in float64. The budgets are those of
the other graphs: twice the error of transformers' float32, plus one unit in the last place of the largest number.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

import numpy as np
from onnxruntime import InferenceSession

from export.hf.generation.modules import names
from export.hf.parts import DECODER_IDS, PICTURES_BEFORE, config_of
from export.hf.verification.examples import place
from export.hf.verification.float64 import Original
from export.verification.budget import budget_of, largest_error
from export.verification.checks import Check
from export.verification.sessions import Arrays
from models.block import Block, size

TOKENS = 32
PROMPTS = ((1,), (5,), (4, 7))  # the lengths of the chunks in which a prompt is given
PADDED = (7, 4)  # the lengths of prompts in one run, padded at the left
PADDED_TOKENS = 4
SOURCE = 9  # tokens of an encoder's source
MAX_DRAWS = 16  # of changed embeddings, for the budgets


@dataclass(frozen=True)
class Steps:
    """Runs the graphs; ``past`` are the shapes [heads, width] of the keys and values of all layers."""

    decode: InferenceSession
    encoder: InferenceSession | None
    past: Sequence[tuple[int, ...]]

    @property
    def ids(self) -> str:
        """The name of the input with the tokens."""
        return "decoder_input_ids" if self.encoder else "input_ids"

    @property
    def counts_pictures(self) -> bool:
        """Whether a step takes the number of pictures before it."""
        return PICTURES_BEFORE in {value.name for value in self.decode.get_inputs()}

    def source(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """The inputs of every step that come from the encoder."""
        if self.encoder is None:
            return {}
        outputs = [output.name for output in self.encoder.get_outputs() if output.name.startswith("cross_")]
        given = dict(zip(outputs, self.encoder.run(outputs, dict(inputs)), strict=True))
        if "attention_mask" in {value.name for value in self.decode.get_inputs()}:
            given["attention_mask"] = np.ones_like(inputs["input_ids"])
        return given

    def run(
        self,
        chunks: Sequence[np.ndarray],
        mask: np.ndarray,
        source: Arrays,
        steps: int,
        changes: Callable[[int, int], Arrays] = lambda *_: {},
    ) -> list[Arrays]:
        """The outputs of each run: one for each chunk of a prompt, then one for each of ``steps`` most probable tokens.

        The outputs also have the tokens of the run, as ``ids``. ``mask`` is the prompt's, 0 for padding.
        ``changes(start, end)`` returns further inputs of the run of the tokens from ``start`` to ``end``.
        """
        batch = mask.shape[0]
        shapes = zip(names("past_", len(self.past) // 2), self.past, strict=True)
        past = {name: np.zeros((1, batch, *shape), np.float32) for name, shape in shapes}
        outputs = [output.name for output in self.decode.get_outputs()]
        mask = np.concatenate([mask, np.ones((batch, steps), np.int64)], axis=1)
        runs: list[Arrays] = []
        length = pictures = 0
        for number in range(len(chunks) + steps):
            ids = chunks[number] if number < len(chunks) else runs[-1]["logits"].argmax(-1)[:, None]
            length += ids.shape[1]
            given = {self.ids: ids} if self.encoder else {self.ids: ids, "attention_mask": mask[:, :length]}
            if self.counts_pictures:
                given[PICTURES_BEFORE] = np.full(batch, pictures)
            given |= changes(length - ids.shape[1], length)
            pictures += len(given.get("pixel_values", ()))
            found = dict(zip(outputs, self.decode.run(outputs, {**given, **source, **past}), strict=True))
            past = {name: np.concatenate([past[name], found.pop(name.removeprefix("past_"))]) for name in past}
            runs.append({"ids": ids, **found})
        return runs


def failure(steps: Steps, block: Block, original: Original) -> Check | None:
    """The worst failed check of a single row; None if all pass."""
    rng = np.random.default_rng(0)
    prompts = _prompts(block)
    failed = [check for chunks in prompts for check in _single(steps, block, original, chunks, rng) if not check.ok]
    return max(failed, key=lambda check: check.error / (check.budget or 1), default=None)


def largest_errors(steps: Steps, block: Block, original: Original) -> dict[str, float]:
    """The largest error of each output against float64; for ``tokens``, of a chosen logit below the largest one."""
    rng, errors = np.random.default_rng(0), dict[str, float]()
    for chunks in _prompts(block):
        for check in _single(steps, block, original, chunks, rng):
            errors[check.output] = max(errors.get(check.output, 0.0), check.error)
    return errors


def pads_left(steps: Steps, block: Block, original: Original) -> bool:
    """Whether rows of different lengths, padded at the left, give the same numbers as each row alone."""
    if steps.encoder:
        return False  # a step has no mask of the decoder
    rng = np.random.default_rng(1)
    longest = max(PADDED)
    prompts = [tokens_of(block, original, length, rng)[0] for length in PADDED]
    padded = np.stack([np.pad(prompt, (longest - len(prompt), 0), mode="edge") for prompt in prompts])
    mask = np.stack([np.pad(np.ones_like(prompt), (longest - len(prompt), 0)) for prompt in prompts])
    runs = steps.run([padded], mask, {}, PADDED_TOKENS)
    checks = (
        check
        for row, length in enumerate(PADDED)
        for check in _compared(f"row {row}", runs, 1, {}, steps.ids, original, row, longest - length)
    )
    return all(check.ok for check in checks)


def _single(
    steps: Steps, block: Block, original: Original, chunks: Sequence[int], rng: np.random.Generator
) -> Iterator[Check]:
    prompt = tokens_of(block, original, sum(chunks), rng)
    is_whole = steps.encoder is None and len(chunks) == 1
    pictures = placed_pictures(block, prompt, rng) if is_whole else {}
    inputs = source_of(block, rng) if steps.encoder else pictures
    parts = [prompt[:, start:end] for start, end in pairwise([0, *np.cumsum(chunks).tolist()])]
    limit = block.limits.get("m" if steps.encoder else "n", TOKENS + prompt.size)
    count = min(TOKENS, limit - prompt.size)
    runs = steps.run(
        parts, np.ones_like(prompt), steps.source(inputs), count, lambda start, _: {} if start else pictures
    )
    tokens = _placeholders(block)  # only the prompt's have pictures, so a run of all tokens cannot have later ones
    runs = [*runs[: len(chunks)], *takewhile(lambda run: not np.isin(run["ids"], tokens).any(), runs[len(chunks) :])]
    name = f"{'+'.join(map(str, chunks))} tokens"
    yield from _compared(name, runs, len(chunks), inputs, steps.ids, original)


def _compared(
    example: str,
    runs: Sequence[Arrays],
    chunks: int,
    inputs: Arrays,
    ids_name: str,
    original: Original,
    row: int = 0,
    padding: int = 0,
) -> Iterator[Check]:
    """A check of each output of one row over all runs, and one of the chosen tokens."""
    ids = np.concatenate([run["ids"][row] for run in runs])[padding:]
    ends = np.cumsum([run["ids"].shape[1] for run in runs]) - padding - 1  # the last position of each run
    actual = joined_outputs(runs, row, padding)
    whole = {**inputs, ids_name: ids[None]}
    budgets: dict[str, float] = {}
    for draw in range(MAX_DRAWS):
        exact, plain = (original(whole, dtype, draw) for dtype in (np.float64, np.float32))
        for name in exact:
            budgets[name] = max(budgets.get(name, 0.0), budget_of(plain[name], exact[name]))
        if draw == 0:
            expected = {name: exact[name][:, 0] for name in actual if name != "output"}
            expected["output"] = exact["output"][0, ends]
            expected["weights"] = np.pad(expected["weights"], ((0, 0), (0, 0), (0, 0), (padding, 0)))
            errors = {name: largest_error(array, expected[name]) for name, array in actual.items()}
        if all(errors[name] <= budgets[name] for name in errors):
            break
    for name, error in errors.items():
        yield Check("decode", example, name, error, budgets[name])
    logits, chosen = expected["output"][chunks - 1 : -1], ids[ends[chunks - 1 : -1] + 1]
    regret = logits.max(-1) - np.take_along_axis(logits, chosen[:, None], -1)[:, 0]
    yield Check("decode", example, "tokens", float(regret.max(initial=0.0)), 2 * budgets["output"])


def joined_outputs(runs: Sequence[Arrays], row: int, padding: int) -> dict[str, np.ndarray]:
    """The outputs of one row over all runs, without the queries that are padding; ``output`` are the logits."""
    lengths = [run["ids"].shape[1] for run in runs]
    joined = {"output": np.stack([run["logits"][row] for run in runs])}
    for name in runs[0].keys() - {"ids", "logits"}:
        parts = [run[name][:, row] for run in runs]
        if name == "weights":  # each run has all keys so far
            widths = [sum(lengths) - part.shape[-1] for part in parts]
            parts = [
                np.pad(part, ((0, 0), (0, 0), (0, 0), (0, more))) for part, more in zip(parts, widths, strict=True)
            ]
        joined[name] = np.concatenate(parts, axis=-2)[..., padding:, :]
    return joined


def source_of(block: Block, rng: np.random.Generator) -> dict[str, np.ndarray]:
    name, spec = next(iter(block.inputs.items()))
    shape = [size(dim, {"batch": 1, "n": SOURCE}) for dim in spec.shape]
    if spec.dtype == "int64":
        return {name: rng.integers(0, int(spec.maximum or 0) + 1, shape)}
    return {name: rng.standard_normal(shape, np.float32)}


def _prompts(block: Block) -> list[tuple[int, ...]]:
    """The lengths of the chunks of each prompt; a model that reads pictures also has a prompt with a picture."""
    counts = [spec.placeholder.count for spec in block.inputs.values() if spec.placeholder]
    return [*PROMPTS, *((count + max(PADDED),) for count in counts)]


def placed_pictures(block: Block, prompt: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """As many random pictures as fit into ``prompt``, which gets their tokens; empty if the model reads none."""
    pictures = {}
    for name, spec in block.inputs.items():
        if spec.placeholder:
            shape = prompt.size // spec.placeholder.count, *map(int, spec.shape[1:])
            pictures[name] = rng.standard_normal(shape, np.float32)
            place(prompt, spec.placeholder, shape[0], rng)
    return pictures


def tokens_of(block: Block, original: Original, count: int, rng: np.random.Generator) -> np.ndarray:
    """Random ids [1, count], without that of padding, which has no position in some models, and those of pictures."""
    name = DECODER_IDS if DECODER_IDS in block.inputs else "input_ids"
    last = int(block.inputs[name].maximum or 0)
    padding = getattr(config_of(original.wrapper.model, name).get_text_config(), "pad_token_id", None)
    others = [token for token in (padding, *_placeholders(block)) if token is not None]
    other = next(token for token in range(last, -1, -1) if token not in others)
    ids = rng.integers(0, last, (1, count))
    return np.where(np.isin(ids, others), other, ids)


def _placeholders(block: Block) -> list[int]:
    """The tokens that stand for pictures."""
    return [spec.placeholder.token for spec in block.inputs.values() if spec.placeholder]
