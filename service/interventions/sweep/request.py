"""The fields of a sweep: a run, an intervention, the axes of a grid, and a metric."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from service.base.aliases import name_hint
from service.base.errors import Invalid, Malformed
from service.codec.json_parser import JsonObject
from service.codec.json_reader import describe
from service.codec.json_slices import LongList, LongText
from service.interventions import metrics
from service.interventions.metrics import Metric, read_metric
from service.interventions.request import ONE, Intervention, InterventionReader, OtherRun, within
from service.interventions.sweep.grid import grid_axes
from service.selection.indices import Indices
from service.tokens.request import read_flag

OVER, POSITION, STREAM = "over", "position", "stream"
ALL = "all"


@dataclass(frozen=True, slots=True)
class SweepFields:
    """A sweep as it was sent. ``axes`` are those of its grid; the intervention selects their indices."""

    own: OtherRun
    intervention: Intervention
    axes: tuple[str, ...]
    metric: Metric
    position: int | None
    stream: bool


def read_sweep(content: bytes, parts: Sequence[LongText | LongList], reading: InterventionReader) -> SweepFields:
    """The fields of the JSON ``content``, of which ``parts`` were cut out.

    Raises:
        Malformed: not JSON, or a field that is unknown or given twice.
        Invalid: one that is missing, of another type or out of range; ``field`` names it.
        TooLarge: a text that is longer than the limit.
    """
    others = (ONE, OVER, metrics.FIELD, POSITION, STREAM)
    given = reading.fields(content, parts, others)
    if ONE not in given:
        raise Invalid("missing (required)", ONE)
    intervention = reading.intervention(given[ONE], ONE)
    selected = _over(given.get(OVER), intervention, reading)
    stream = bool(read_flag(given, STREAM))
    position = given.get(POSITION)
    if position is not None and type(position) is not int:
        raise Invalid(f"expected a whole number, got {describe(position)}", POSITION)
    metric = read_metric(given.get(metrics.FIELD), reading.reader, reading.model)
    own = reading.own_run(given, metric.of)
    reading.reader.finish(content, strict=False)  # a text may have brackets
    indices = {name: one for name, one in selected.items() if one is not None}
    intervention = replace(intervention, selected={**intervention.selected, **indices})
    return SweepFields(own, intervention, tuple(selected), metric, position, stream)


def _over(value: Any, intervention: Intervention, reading: InterventionReader) -> Mapping[str, Indices | None]:
    """The axes of the grid, with the indices of each; None = all."""
    if not isinstance(value, JsonObject):
        expected = f'expected an object of axes, such as {{"layers": "{ALL}", "positions": "{ALL}"}}'
        raise Invalid(
            f"missing (required); {expected}" if value is None else f"{expected}, got {describe(value)}", OVER
        )
    axes = grid_axes(intervention.at)
    selected: dict[str, Indices | None] = {}
    with within(OVER):
        for name in value:
            if name not in axes:
                raise Malformed(
                    f"not an axis of {intervention.at}{name_hint(name, axes) or '; expected ' + ', '.join(axes)}", name
                )
            if name in selected:
                raise Malformed("given twice", name)
            if name in intervention.selected:
                raise Malformed(f"cannot be given together with {ONE}.{name}", name)
            if name == "positions" and intervention.tokens:
                raise Malformed(f"cannot be given together with {ONE}.tokens", name)
            part = reading.reader.part(value[name])
            selected[name] = None if part == ALL else reading.indices(name, part)
    return selected
