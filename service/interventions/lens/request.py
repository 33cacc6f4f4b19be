"""The fields of a lens: a run, its interventions, and the layers, positions and number of tokens to answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.base.errors import Invalid
from service.codec.json_reader import describe
from service.codec.json_slices import LongList, LongText
from service.interventions import request
from service.interventions.intervenable import ANSWER
from service.interventions.request import Intervention, InterventionReader, OtherRun, read_interventions
from service.model.model import Model
from service.selection.indices import Indices
from service.tokens.next_tokens import MAX_COUNT, vocabulary_size

TOP_K, DEFAULT_TOP_K = "lens_top_k", 5
SELECTING = ("layers", "positions")


@dataclass(frozen=True, slots=True)
class LensFields:
    """A lens as it was sent; ``selected`` has indices by axis."""

    own: OtherRun
    interventions: Sequence[Intervention]
    count: int
    selected: dict[str, Indices]


def read_top_k(value: Any, model: Model) -> int:
    """The number of tokens at each place.

    Raises:
        Invalid: no number from 1 to MAX_COUNT, or more than the vocabulary has.
    """
    if type(value) is not int or not 0 < value <= MAX_COUNT:
        raise Invalid(f"expected a whole number from 1 to {MAX_COUNT}, got {describe(value)}", TOP_K)
    if value > (vocabulary := vocabulary_size(model)):
        raise Invalid(f"expected at most {vocabulary}, the size of the vocabulary, got {value}", TOP_K)
    return value


def read_lens(content: bytes, parts: Sequence[LongText | LongList], reading: InterventionReader) -> LensFields:
    """The fields of the JSON ``content``, of which ``parts`` were cut out.

    Raises:
        Malformed: not JSON, or a field that is unknown or given twice.
        Invalid: one that is missing, of another type or out of range; ``field`` names it.
        TooLarge: a text that is longer than the limit.
    """
    others = (TOP_K, *SELECTING, request.FIELD)
    given = reading.fields(content, parts, others)
    count = read_top_k(given.get(TOP_K, DEFAULT_TOP_K), reading.model)
    interventions: Sequence[Intervention] = ()
    if request.FIELD in given:
        interventions = read_interventions(given[request.FIELD], reading)
    own = reading.own_run(given, ANSWER)
    selected = {name: reading.indices(name, given[name]) for name in SELECTING if name in given}
    reading.reader.finish(content, strict=False)  # a text may have brackets
    return LensFields(own, interventions, count, selected)
