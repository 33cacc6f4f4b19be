"""Compare changed activations of a graph with the same changes in the model of torch.

In torch an activation is the first tensor of a run that equals the graph's: so no module is named, and a site
that no tensor equals fails.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from onnxruntime import InferenceSession
from torch import Tensor
from torch.overrides import TorchFunctionMode

from export.interventions.graph import ADD, DIRECTION, KEEP, RENORMALIZE, input_name, kinds_of
from export.interventions.sites import Site
from export.verification.budget import Reference, budget_of, largest_error
from export.verification.sessions import Arrays, run_outputs

InParts = Callable[[int, Arrays, Arrays], Arrays]  # a layer, inputs and its change -> answers
SLACK = 4  # the error of one draw may be this many times the budget of another
ALIKE = 1e-4  # share of the largest number: a tensor that differs by no more is the activation
SHARE = 0.5  # probability that a number is changed


@dataclass
class Failures:
    """Why changes fail, by site, and why a run in parts fails."""

    sites: dict[str, str] = field(default_factory=dict)
    parts: str | None = None


@dataclass(frozen=True)
class Verification:
    """``run`` has the inputs of all sites, ``plain`` returns their values by name, and ``original`` is the model.

    A change must change one of the outputs ``answers``. ``in_parts`` computes these from a changed layer on.
    """

    run: InferenceSession
    plain: InferenceSession
    original: Reference
    answers: Sequence[str]
    in_parts: InParts | None = None

    def failures(self, sites: Sequence[Site], examples: Sequence[Arrays]) -> Failures:
        """Where changes of the ``examples`` fail."""
        failed = Failures()
        for index, site in enumerate(sites):
            for seed, inputs in enumerate(examples):
                found = self._failures(site, np.random.default_rng([index, seed]), inputs)
                failed.sites |= found.sites
                failed.parts = failed.parts or found.parts
                if found.sites:
                    break
        return failed

    def _failures(self, site: Site, rng: np.random.Generator, inputs: Arrays) -> Failures:
        """Why a change of a random layer differs from that of the model."""
        drawn_layer = int(rng.integers(len(site.values)))
        for layer in dict.fromkeys((drawn_layer, 0)):  # Depth Anything may not read its last layers
            activation, change, outputs, is_read = self._changed_run(site, layer, rng, inputs)
            if is_read:
                break
        else:
            return Failures({site.name: "its change does not change the answer"})
        answers = []
        for dtype in (np.float32, np.float64):
            with changed(activation, change) as count:
                answers.append(self.original(inputs, dtype))
            if not count:
                return Failures({site.name: "no tensor of the model equals it"})
        reason = difference(outputs, *answers)
        if reason is not None:
            return Failures({site.name: reason})
        if self.in_parts is None:
            return Failures()
        own = {input_name(site.name, kind): array[None] for kind, array in change.items()}
        return Failures({}, difference(self.in_parts(layer, inputs, own), *answers))

    def _changed_run(
        self, site: Site, layer: int, rng: np.random.Generator, inputs: Arrays
    ) -> tuple[np.ndarray, Arrays, Arrays, bool]:
        """The activation of a layer, a random change of it, the outputs with that change, and whether an answer
        changes."""
        value, names = site.values[layer], [output.name for output in self.run.get_outputs()]
        answers = [name for name in self.answers if name in names]
        before = run_outputs(self.plain, [*{value, *answers}], inputs)
        activation = before[value]
        change = {kind: drawn(kind, activation, rng) for kind in kinds_of(site.name)}
        own = {input_name(site.name, kind): of_layer(array, kind, layer, site) for kind, array in change.items()}
        outputs = run_outputs(self.run, names, {**inputs, **own})
        return activation, change, outputs, any(not np.array_equal(outputs[name], before[name]) for name in answers)


def difference(outputs: Arrays, rounded: Arrays, exact: Arrays) -> str | None:
    for name in outputs.keys() & exact.keys():
        budget = SLACK * budget_of(rounded[name], exact[name])
        if not largest_error(outputs[name], exact[name]) <= budget:
            return f"{name} differs by {largest_error(outputs[name], exact[name]):.2g}, allowed {budget:.2g}"
    return None


def drawn(kind: str, activation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A change of about half of the numbers of an activation."""
    axes = (*activation.shape[:-1], 1) if kind == RENORMALIZE else activation.shape
    chosen = rng.random(axes) < SHARE
    if kind == RENORMALIZE:
        return chosen.astype(np.float32)
    size = float(np.abs(activation).mean())
    values = {
        KEEP: rng.uniform(0, 2, axes), ADD: size * rng.uniform(0, 1, axes), DIRECTION: rng.normal(0, 0.1, axes)
    }  # fmt: skip
    return np.where(chosen, values[kind], kind == KEEP).astype(np.float32)


def of_layer(change: np.ndarray, kind: str, layer: int, site: Site) -> np.ndarray:
    """The input for all layers that changes only ``layer``."""
    whole = np.full((len(site.values), *change.shape), float(kind == KEEP), np.float32)
    whole[layer] = change
    return whole


def apply(activation: Tensor, change: Mapping[str, np.ndarray]) -> Tensor:
    """The changed activation, in its own type."""
    own = {kind: torch.from_numpy(array).to(activation.dtype) for kind, array in change.items()}
    value = activation * own[KEEP] + own[ADD]
    if DIRECTION in own:
        value = value + activation.norm(dim=-1, keepdim=True) * own[DIRECTION]
    if RENORMALIZE in own:
        value = torch.where(own[RENORMALIZE] == 1, value / value.sum(-1, keepdim=True), value)
    return value


@contextmanager
def changed(activation: np.ndarray, change: Mapping[str, np.ndarray]) -> Iterator[list[int]]:
    """A context in which the first tensor that equals ``activation`` is changed; then the list is not empty."""
    mode = _Changed(activation, lambda tensor: apply(tensor, change))
    with mode:
        yield mode.changed


class _Changed(TorchFunctionMode):
    def __init__(self, activation: np.ndarray, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.changed: list[int] = []
        self._activation = torch.from_numpy(activation)
        self._change = change

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.changed and isinstance(result, Tensor) and self._is_activation(result):
            self.changed.append(1)
            return self._change(result)
        return result

    def _is_activation(self, tensor: Tensor) -> bool:
        if tensor.shape != self._activation.shape or not tensor.is_floating_point():
            return False
        limit = ALIKE * float(self._activation.abs().max())
        return bool((tensor.to(torch.float64) - self._activation).abs().max() <= limit)
