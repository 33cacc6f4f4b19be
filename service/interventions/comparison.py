"""How an answer compares the changed run with the one without changes: fields beside the interventions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.base.errors import Invalid
from service.codec.json_parser import JsonArray
from service.interventions.metrics import Metric, read_metric
from service.interventions.request import FIELD, Intervention, InterventionReader, read_interventions
from service.model.graph import Arrays
from service.model.model import Model
from service.tensors.cast import is_finite
from service.tokens.next_tokens import last_places
from service.tokens.request import read_flag

BASELINE, DIFFERENCE = "baseline", "difference"
MAX_METRICS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """The interventions of a request, and how its answer compares them with the run without changes.

    With ``has_baseline`` the outputs of that run are answered, too; the numbers of ``metrics`` are, as a list unless
    one of them ``is_single``.
    """

    interventions: Sequence[Intervention]
    has_baseline: bool = False
    metrics: Sequence[Metric] = ()
    is_single: bool = False

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that the metrics are of."""
        return tuple(dict.fromkeys(metric.of for metric in self.metrics))

    def differences(self, changed: Arrays, unchanged: Arrays, own: Arrays, model: Model) -> Any:
        """What is answered of the metrics, for the outputs of both runs of ``own`` inputs.

        Raises:
            Invalid: an output is not finite.
        """
        answered = []
        for metric in self.metrics:
            runs = [_at_last(one[metric.of], own, model) for one in (changed, unchanged)]
            if not all(map(is_finite, runs)):
                raise Invalid(f"{metric.of} is not finite: it overflows float32", metric.field)
            after, before = (
                [metric(row[None], other)[0] for row, other in zip(rows, runs[1], strict=True)] for rows in runs
            )
            answered.append({"metric": metric.json, "unchanged": _of_rows(before), "changed": _of_rows(after)})
        return answered[0] if self.is_single else answered


def read_changes(given: Mapping[str, Any], reading: InterventionReader) -> Changes | None:
    """The changes in the fields ``given``; None if there are none.

    Raises:
        Malformed, Invalid, TooLarge: as ``read_interventions`` and ``read_metric``.
    """
    baseline, difference = read_flag(given, BASELINE), given.get(DIFFERENCE)
    if given.get(FIELD) is None:
        if baseline or difference is not None:
            raise Invalid(f"requires {FIELD}", BASELINE if baseline else DIFFERENCE)
        return None
    items = {} if difference is None else {DIFFERENCE: difference}
    if is_list := isinstance(difference, JsonArray):
        if not 0 < len(difference) <= MAX_METRICS:
            raise Invalid(f"expected 1 to {MAX_METRICS} metrics, got {len(difference)}", DIFFERENCE)
        reading.reader.brackets += 1
        items = {f"{DIFFERENCE}[{index}]": item for index, item in enumerate(difference)}
    metrics = [read_metric(item, reading.reader, reading.model, field) for field, item in items.items()]
    return Changes(read_interventions(given[FIELD], reading), bool(baseline), metrics, not is_list)


def _of_rows(numbers: Sequence[np.floating]) -> float | list[float]:
    """One number, or a list of those of several rows."""
    return float(numbers[0]) if len(numbers) == 1 else [*map(float, numbers)]


def _at_last(output: np.ndarray, own: Arrays, model: Model) -> np.ndarray:
    """The scores or the vector of each row, at its last token of a language model, at the first position of others."""
    if output.ndim == 2:
        return output
    if not model.signature.predicts_tokens:
        return output[:, 0]
    last: np.ndarray = output[np.arange(len(output)), last_places(own, *output.shape[:2])]
    return last
