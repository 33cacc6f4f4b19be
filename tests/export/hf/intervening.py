"""Interventions over HTTP, beside hooks on the modules of transformers in float64."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import numpy as np
import torch
import transformers
from torch import Tensor, nn

from export.hf.verification.float64 import in_float64

ERROR = 1e-5  # of the largest number, or of 1
SLACK = 4  # the largest error of a few numbers is random
KINDS = ("weights", "head_output", "hidden", "attention_output", "mlp_output")
LAYER = 1
POSITIONS, HEAD, KEYS = [1, 3], 1, [0, 2]
PROMPT, NEW_TOKENS = 4, 4  # of a text that grows
POSITION = 3  # of the output of which a sweep has a number
Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Stack:
    """The modules of one stack: names in each of ``layers``. ``softmax`` is the place of its first call in a run, after
    which come those of the next layers, ``step`` apart."""

    layers: str
    attention: str
    mlp: str | None
    projection: str
    softmax: int = 0
    step: int = 1


LLAMA = Stack("model.layers", "self_attn", "mlp", "self_attn.o_proj")
BART = ("self_attn", "fc2", "self_attn.out_proj")
STACKS: dict[str, dict[str, Stack]] = {  # by family, and by the prefix of sites
    "gpt 2": {"": Stack("transformer.h", "attn", "mlp", "attn.c_proj")},
    "llama": {"": LLAMA},
    "qwen 3": {"": LLAMA},
    "gemma 2": {
        "": Stack("model.layers", "post_attention_layernorm", "post_feedforward_layernorm", "self_attn.o_proj")
    },
    "gpt neox": {"": Stack("gpt_neox.layers", "attention", "mlp", "attention.dense")},
    "bert": {"": Stack("bert.encoder.layer", "attention.output.dense", "output.dense", "attention.output.dense")},
    "distilbert": {"": Stack("distilbert.transformer.layer", "attention.out_lin", "ffn", "attention.out_lin")},
    "vit": {"": Stack("vit.layers", "attention", "mlp", "attention.o_proj")},
    "t5": {
        "encoder_": Stack(
            "encoder.block", "layer.0.SelfAttention", "layer.1.DenseReluDense", "layer.0.SelfAttention.o"
        ),
        "": Stack("decoder.block", "layer.0.SelfAttention", "layer.2.DenseReluDense", "layer.0.SelfAttention.o", 2, 2),
        "cross_": Stack("decoder.block", "layer.1.EncDecAttention", None, "layer.1.EncDecAttention.o", 3, 2),
    },
    "bart": {
        "encoder_": Stack("model.encoder.layers", *BART),
        "": Stack("model.decoder.layers", *BART, 2, 2),
        "cross_": Stack("model.decoder.layers", "encoder_attn", None, "encoder_attn.out_proj", 3, 2),
    },
}


def _sites(
    family: str, sites: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[str, str, int, Callable[[transformers.PreTrainedModel], "_Reference"]]]:
    """Of each site of a family: prefix and kind of its name, the width of what is changed, and its reference."""
    for prefix, stack in STACKS[family].items():
        for kind in KINDS:
            if (shape := sites.get(prefix + kind)) is not None:
                heads = int(shape[2]) if kind in ("weights", "head_output") else 0
                width = 0 if kind == "weights" else int(shape[-1])
                yield prefix, kind, width, partial(_Reference, stack=stack, kind=kind, heads=heads)


def check_interventions(
    client: httpx.Client, model: transformers.PreTrainedModel, family: str, inputs: dict[str, np.ndarray]
) -> None:
    """Check every kind of change at each site of the server's model ``mine``.

    Outputs are within ERROR of those in float64, or within SLACK times the error of transformers in float32.
    """
    sites = client.get("/v1/attention/mine").json()["interventions"]
    plain, exact = model, deepcopy(model).double()
    for prefix, kind, width, run in _sites(family, sites):
        with torch.no_grad():
            rounded = [*_results(run(plain), inputs, width)]
            with in_float64():
                results = [*_results(run(exact), inputs, width)]
        for (output, fields), (other, _) in zip(results, rounded, strict=True):
            answer = client.post(
                "/v1/attention/mine",
                json={
                    **{name: array.tolist() for name, array in inputs.items()},
                    "outputs": ["output"],
                    "interventions": [{"at": prefix + kind, "layers": LAYER, **fields}],
                },
            )
            assert answer.status_code == 200, answer.text
            error = np.abs(np.array(answer.json()["output"]) - output).max()
            limit = max(ERROR * max(1, np.abs(output).max()), SLACK * np.abs(other - output).max())
            assert error <= limit, (prefix + kind, fields)


def check_changed_generation(
    client: httpx.Client,
    model: transformers.PreTrainedModel,
    family: str,
    inputs: dict[str, np.ndarray],
    name: str = "mine",
) -> None:
    """Check every kind of change at each site while the server's model ``name`` generates.

    Its tokens are those that transformers chooses greedily in float64 with hooks, from the whole text at each step. The
    logarithms of all probabilities are within ERROR, or within SLACK times the error of transformers in float32.
    """
    ids = "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
    inputs = {**inputs, ids: inputs[ids][:, :PROMPT]}
    plain, exact = model, deepcopy(model).double()
    described = client.get(f"/v1/attention/{name}").json()
    sites = described["interventions"]
    assert {*described["generate"]["interventions"]} == {*sites}
    for prefix, kind, width, run in _sites(family, sites):
        of_encoder = prefix == "encoder_"
        with torch.no_grad(), in_float64():
            results = [*_generations(run(exact), inputs, ids, width, of_encoder)]
        for place, (tokens, expected, fields) in enumerate(results):
            answer = client.post(
                f"/v1/generate/{name}",
                json={
                    **{field: array[0].tolist() for field, array in inputs.items()},
                    "max_new_tokens": NEW_TOKENS, "ignore_eos": True, "outputs": ["logprobs"],
                    "interventions": [{"at": prefix + kind, "layers": LAYER, **fields}],
                },
            )  # fmt: skip
            assert answer.status_code == 200, answer.text
            generated = answer.json()["generated"]
            assert [token["id"] for token in generated] == tokens, (prefix + kind, fields)
            error = np.abs(np.array([token["logprobs"] for token in generated]) - expected).max()
            if error > ERROR * max(1, np.abs(expected).max()):
                with torch.no_grad():
                    near = [*_generations(run(plain), inputs, ids, width, of_encoder)][place][1]
                assert error <= SLACK * np.abs(near - expected).max(), (prefix + kind, fields)


def check_sweeps(client: httpx.Client, inputs: dict[str, np.ndarray]) -> None:
    """Check that a sweep over each site of the server's model ``mine`` has the numbers of runs with one intervention,
    which ``check_interventions`` compares with transformers."""
    row = {name: array[0].tolist() for name, array in inputs.items()}
    block = client.get("/v1/attention/mine").json()
    shapes = {output["name"]: output["shape"] for output in block["outputs"]}
    of = "embedding" if "embedding" in shapes else "output"
    place = {"position": POSITION} if len(shapes[of]) == 3 else {}

    def vector(*interventions: dict[str, Any]) -> np.ndarray:
        changes = {"interventions": [*interventions]} if interventions else {}
        answer = client.post("/v1/attention/mine", json={**row, "outputs": [of], **changes})
        array = np.array(answer.json()[of])
        return array[POSITION] if place else array

    plain = vector()
    for site, shape in block["interventions"].items():
        rest = {"queries": [POSITION], "keys": [0]} if site.endswith("weights") else {"positions": POSITIONS}
        over = {"layers": "all", **({"heads": [HEAD]} if len(shape) == 5 else {}), **rest}
        change = {"at": site, "scale": 0.25}
        body = {**row, **place, "intervention": change, "over": over, "metric": "cosine_distance"}
        answer = client.post("/v1/sweep/mine", json=body)
        assert answer.status_code == 200, answer.text
        values = np.array(answer.json()["values"])
        for cell in np.ndindex(values.shape):
            chosen = {axis: answer.json()[axis][k] for axis, k in zip(over, cell, strict=True)}
            changed = vector({**change, **chosen})
            distance = 1 - changed @ plain / np.linalg.norm(changed) / np.linalg.norm(plain)
            assert abs(values[cell] - distance) <= ERROR, (site, chosen)


def _generations(
    run: "_Reference", inputs: dict[str, np.ndarray], ids: str, width: int, of_encoder: bool
) -> Iterator[tuple[list[int], np.ndarray, dict[str, Any]]]:
    """The tokens and the logarithms of all probabilities of changed runs, and the fields that say the same."""
    own = {name: array[:1] for name, array in inputs.items()}
    other = {name: array[1:] for name, array in inputs.items()}
    for change, fields in _changes_of_text(run, own, other, run.kind, width, of_encoder):
        grown, logprobs = dict(own), []
        for _ in range(NEW_TOKENS):
            logits = torch.from_numpy(run(grown, change)[0, -1]).double()
            logprobs.append(logits.log_softmax(-1).numpy())
            grown[ids] = np.append(grown[ids], [[int(logits.argmax())]], axis=1)
        yield grown[ids][0, PROMPT:].tolist(), np.array(logprobs), fields


def _changes_of_text(
    run: "_Reference", inputs: dict[str, np.ndarray], other: dict[str, np.ndarray], kind: str, width: int,
    of_encoder: bool,
) -> Iterator[tuple[Change, dict[str, Any]]]:  # fmt: skip
    """Changes of a text that grows, of which positions from PROMPT on are new, and the fields that say the same."""
    if kind == "weights":
        start = next(iter(inputs.values())).shape[1] - 1 if of_encoder else PROMPT - 1

        def removed(x: Tensor) -> Tensor:
            return _put(x, (slice(None), HEAD, slice(start, None), KEYS), torch.zeros(()))

        fields: dict[str, Any] = {"heads": HEAD, "queries": "-1:", "keys": KEYS}
        yield removed, {**fields, "scale": 0}
        rows = (slice(None), HEAD, slice(start, None))
        yield (
            lambda x: _put(x, rows, removed(x)[rows] / removed(x)[rows].sum(-1, True)),
            {**fields, "scale": 0, "renormalize": True},
        )
        return
    heads = (slice(None), HEAD) if kind == "head_output" else (slice(None),)
    own_fields = {"heads": HEAD} if kind == "head_output" else {}
    vector = np.round(np.random.default_rng(0).normal(0, 1, width), 3)
    given = torch.from_numpy(vector)
    mean, theirs = run.activation(inputs).mean(-2, keepdim=True)[heads], run.activation(other)[heads]
    sent = {name: array.tolist() for name, array in other.items()}
    places = POSITIONS if of_encoder else [POSITIONS[0], PROMPT + 1]

    def at(x: Tensor, positions: Any) -> Any:
        kept = [one for one in positions if one < x.shape[-2]] if isinstance(positions, list) else positions
        return (*heads, kept)

    def changed(positions: Any, change: Change) -> Change:
        return lambda x: _put(x, at(x, positions), change(x[at(x, positions)]))

    every = slice(None)
    last = slice(next(iter(inputs.values())).shape[1] - 1 if of_encoder else PROMPT - 1, None)
    yield changed(places, lambda x: 0.5 * x), {**own_fields, "positions": places, "scale": 0.5}
    yield changed(every, lambda x: x + given), {**own_fields, "add": vector.tolist()}
    yield changed(last, lambda x: given.expand_as(x)), {**own_fields, "positions": "-1:", "replace": vector.tolist()}
    yield changed(every, lambda x: mean.expand_as(x)), {**own_fields, "replace": "mean"}
    yield (
        lambda x: _put(x, at(x, POSITIONS), theirs[..., POSITIONS, :]),
        {**own_fields, "positions": POSITIONS, "from": sent},
    )
    yield changed(every, lambda x: x + 2 * theirs[..., -1:, :]), {**own_fields, "add": {**sent, "scale": 2}}
    if kind != "head_output":
        unit = given / given.norm()
        yield (
            changed(last, lambda x: x + 0.7 * x.norm(dim=-1, keepdim=True) * unit),
            {"positions": "-1:", "add": vector.tolist(), "norm_match": True, "scale": 0.7},
        )


def _results(
    run: "_Reference", inputs: dict[str, np.ndarray], width: int
) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """The changed outputs, and the fields that say the same to the server."""
    other = {name: array[1:] for name, array in inputs.items()}
    for change, fields in _changes(run, inputs, other, run.kind, width):
        yield run(inputs, change), fields


def _changes(
    run: "_Reference", inputs: dict[str, np.ndarray], other: dict[str, np.ndarray], kind: str, width: int
) -> Iterator[tuple[Change, dict[str, Any]]]:
    """Changes of activations, and the fields that say the same to the server."""
    if kind == "weights":
        place = (slice(None), HEAD, POSITIONS[-1], KEYS)
        fields: dict[str, Any] = {"heads": HEAD, "queries": POSITIONS[-1], "keys": KEYS}

        def removed(x: Tensor) -> Tensor:
            x[place] = 0
            return x

        yield removed, {**fields, "scale": 0}
        yield (
            lambda x: _put(x, place[:3], (removed(x.clone())[place[:3]] / removed(x.clone())[place[:3]].sum(-1, True))),
            {**fields, "scale": 0, "renormalize": True},
        )
        return
    axis = (slice(None), HEAD, POSITIONS) if kind == "head_output" else (slice(None), POSITIONS)
    fields = {"positions": POSITIONS, **({"heads": HEAD} if kind == "head_output" else {})}
    vector = np.round(np.random.default_rng(0).normal(0, 1, width), 3)
    given = torch.from_numpy(vector)
    theirs = run.activation(other)
    own = run.activation(inputs)
    first, last = theirs[0], theirs[0, ..., -1:, :]
    yield lambda x: _put(x, axis, 0.5 * x[axis]), {**fields, "scale": 0.5}
    yield lambda x: _put(x, axis, x[axis] + given), {**fields, "add": vector.tolist()}
    yield lambda x: _put(x, axis, given.expand_as(x[axis])), {**fields, "replace": vector.tolist()}
    mean = own.mean(-2, keepdim=True).expand_as(own)
    yield lambda x: _put(x, axis, mean[axis]), {**fields, "replace": "mean"}
    sent = {name: array.tolist() for name, array in other.items()}
    at = first[axis[1:]]
    yield lambda x: _put(x, axis, at.expand_as(x[axis])), {**fields, "from": sent}
    end = last[HEAD] if kind == "head_output" else last
    yield lambda x: _put(x, axis, x[axis] + 2 * end), {**fields, "add": {**sent, "scale": 2}}
    if kind != "head_output":
        unit = given / given.norm()
        yield (
            lambda x: _put(x, axis, x[axis] + 0.7 * x[axis].norm(dim=-1, keepdim=True) * unit),
            {**fields, "add": vector.tolist(), "norm_match": True, "scale": 0.7},
        )


def _put(x: Tensor, place: Any, value: Tensor) -> Tensor:
    changed = x.clone()
    changed[place] = value.to(x.dtype)
    return changed


class _Reference:
    """Runs ``model`` with a change at the site ``kind`` of layer LAYER in ``stack``."""

    def __init__(self, model: transformers.PreTrainedModel, stack: Stack, kind: str, heads: int) -> None:
        self._model, self._stack, self.kind, self._heads = model, stack, kind, heads

    def __call__(self, inputs: dict[str, np.ndarray], change: Change) -> np.ndarray:
        tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
        dtype = next(self._model.parameters()).dtype
        tensors = {name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()}
        options = {} if self._model.config.model_type == "vit" else {"use_cache": False}
        with self._hooked(change):
            result = self._model(**tensors, output_attentions=True, **options)
        if "start_logits" in result:
            return torch.stack([result.start_logits, result.end_logits], -1).numpy()
        output: Tensor = result.logits if "logits" in result else result.last_hidden_state
        return output.numpy()

    def activation(self, inputs: dict[str, np.ndarray]) -> Tensor:
        found: list[Tensor] = []

        def record(x: Tensor) -> Tensor:
            found.append(x.clone())
            return x

        self(inputs, record)
        return found[0]

    @contextmanager
    def _hooked(self, change: Change) -> Iterator[None]:
        if self.kind == "weights":
            with self._softmax(change):
                yield
            return
        layer = self._model.get_submodule(f"{self._stack.layers}.{LAYER}")

        def after(_: nn.Module, __: Any, output: Any) -> Any:
            return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if args:
                return (change(args[0]), *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": change(kwargs["hidden_states"])}

        def of_heads(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
            (merged,) = args
            split = merged.view(*merged.shape[:2], self._heads, -1).transpose(1, 2)
            return (change(split).transpose(1, 2).reshape(merged.shape),)

        if self.kind == "hidden":
            handle = layer.register_forward_pre_hook(before, with_kwargs=True)
        elif self.kind == "head_output":
            handle = layer.get_submodule(self._stack.projection).register_forward_pre_hook(of_heads)
        else:
            name = self._stack.attention if self.kind == "attention_output" else self._stack.mlp
            assert name is not None
            handle = layer.get_submodule(name).register_forward_hook(after)
        try:
            yield
        finally:
            handle.remove()

    @contextmanager
    def _softmax(self, change: Change) -> Iterator[None]:
        softmax, calls, is_inside = nn.functional.softmax, 0, False
        chosen = self._stack.softmax + LAYER * self._stack.step

        def counted(*args: Any, **kwargs: Any) -> Tensor:
            nonlocal calls, is_inside
            if is_inside:  # torch calls it again by its name, for the mode of float64
                return softmax(*args, **kwargs)
            is_inside = True
            weights = softmax(*args, **kwargs)
            is_inside, calls = False, calls + 1
            return change(weights.clone()) if calls - 1 == chosen else weights

        nn.functional.softmax = counted
        try:
            yield
        finally:
            nn.functional.softmax = softmax
