"""The field ``interventions`` of a request: a list of changes, applied in this order."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from service.base.aliases import name_hint
from service.base.errors import HeedError, Invalid, Malformed
from service.codec.json_parser import JsonArray, JsonObject, parse_object
from service.codec.json_reader import JsonReader, describe
from service.codec.json_slices import LongList, LongText
from service.codec.long_tensor import LongTensor
from service.inference.source import InputSource
from service.interventions.sites import DECODER_IDS, IDS, WEIGHTS, Sites, axes_of
from service.model.model import Model
from service.native.request import collect
from service.selection.indices import MAX_ITEMS, Indices, read_indices
from service.tensors.spec import TensorSpec
from service.tokens.request import FIELDS as TEXTS
from service.tokens.request import TextFields, read_flag, read_texts

FIELD, ONE = "interventions", "intervention"
MAX_COUNT = 64
MAX_FILE_RUNS = 8  # of a request: each may have as many files as one without other runs
MAX_TOKENS = 64  # in the list of one intervention
SELECTING = ("layers", "heads", "positions", "queries", "keys", "tokens")
ACTIONS = ("add", "scale", "replace", "from")
FLAGS = {"norm_match": "add", "renormalize": "scale"}  # and the action that each belongs to
KNOWN = ("at", *SELECTING, *ACTIONS, *FLAGS)
MEAN = "mean"
TEXT_OF = {IDS: "text", DECODER_IDS: "text_target"}  # fields of which a tokenizer makes these inputs
OF_SITES = (WEIGHTS,)  # outputs that need the inputs that all sites need: of two towers those of the texts
MAX_FLOAT32 = float(np.finfo(np.float32).max)
Numbers = np.ndarray | LongTensor


@dataclass(frozen=True, slots=True, eq=False)
class OtherRun:
    """Another run of the model, and the positions of its activation; None = those of the intervention."""

    field: str  # in errors
    texts: TextFields | None
    tensors: Mapping[str, Numbers]
    positions: Indices | None
    files: Any = None  # a reference to files, of which further inputs are made
    outputs: tuple[str, ...] = OF_SITES  # that it needs the inputs of


@dataclass(frozen=True, slots=True)
class Vector:
    """What is added: numbers, or the mean activation of another run, less that of a further one."""

    numbers: Numbers | None
    plus: OtherRun | None = None
    minus: OtherRun | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Intervention:
    """One change. Exactly one of ``add``, ``replace``, ``source`` and ``scale`` says which."""

    field: str  # in errors
    at: str
    selected: Mapping[str, Indices]  # by axis; all of the others
    tokens: Sequence[str]  # in place of positions
    add: Vector | None = None
    replace: Numbers | Literal["mean"] | None = None
    source: OtherRun | None = None
    scale: float = 1.0
    norm_match: bool = False
    renormalize: bool = False

    @property
    def replaces(self) -> bool:
        """Whether nothing is left of what it changes."""
        return self.replace is not None or self.source is not None

    @property
    def runs(self) -> list[OtherRun]:
        """The other runs that it needs."""
        vector = self.add
        return [run for run in (self.source, *((vector.plus, vector.minus) if vector else ())) if run is not None]

    @property
    def numbers(self) -> dict[str, Numbers]:
        """The tensors that were sent, by their names in errors."""
        own = {"add": self.add.numbers if self.add else None, "replace": self.replace}
        sent = {f"{self.field}.{name}": array for name, array in own.items() if isinstance(array, Numbers)}
        return sent | {f"{run.field}.{name}": array for run in self.runs for name, array in run.tensors.items()}


def read_interventions(element: Any, reading: "InterventionReader") -> list[Intervention]:
    """The interventions in the JSON ``element``.

    Raises:
        Malformed: a field that is unknown or given twice.
        Invalid: one that is missing, of another type or out of range, or a site that the model does not have.
        TooLarge: a text that is longer than the limit.
    """
    if not isinstance(element, JsonArray):
        raise Invalid(f"expected a list of objects, got {describe(element)}", FIELD)
    if not 0 < len(element) <= MAX_COUNT:
        raise Invalid(f"expected 1 to {MAX_COUNT} interventions, got {len(element)}", FIELD)
    reading.reader.brackets += 1
    parts = map(reading.reader.part, element)
    return [reading.intervention(part, f"{FIELD}[{index}]") for index, part in enumerate(parts)]


def check_complete(names: Collection[str], model: Model, outputs: Sequence[str]) -> None:
    """Check that inputs of these names are all that ``outputs`` of ``model`` need.

    Raises:
        Invalid: one is missing.
    """
    for name in model.signature.missing(names, outputs):
        raise Invalid("missing (required)", TEXT_OF.get(name, name) if model.tokenizer else name)


@contextmanager
def within(field: str) -> Iterator[str]:
    """A context that puts ``field``, if there is one, before the field that an error names."""
    try:
        yield field
    except HeedError as error:
        inner = error.field
        if not field or (inner is not None and inner.startswith((f"{FIELD}[", f"{ONE}."))):
            raise
        detail = error.detail.removeprefix(f"{inner}: ")
        kind = Invalid if isinstance(error, Invalid) else type(error)  # its subclasses take other arguments
        raise kind(detail, f"{field}.{inner}" if inner else field) from None


@dataclass
class InterventionReader:
    """Reads the interventions and the runs of one document; ``files`` reads the fields with files."""

    reader: JsonReader
    model: Model
    sites: Sites
    files: InputSource[Any]
    max_text_bytes: int
    item_count: int = 0  # indices and ranges that were read so far
    file_run_count: int = 0  # runs with files that were read so far

    def fields(self, content: bytes, parts: Sequence[LongText | LongList], others: Sequence[str]) -> dict[str, Any]:
        """The fields of the JSON ``content``, of which ``parts`` were cut out, that are not null: of a run, and
        ``others``.

        Raises:
            Malformed: not JSON, or a field that is unknown or given twice.
        """
        fields = collect(parse_object(content, parts), (*self.of_runs, *others), self.reader)
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def of_runs(self) -> tuple[str, ...]:
        """The fields of a run."""
        return *TEXTS, *self.files.fields_for(self.model), *self.model.inputs

    def own_run(self, given: Mapping[str, Any], output: str) -> OtherRun:
        """The run that the request is of, in its fields ``given``, for ``output``.

        Raises:
            Malformed, Invalid, TooLarge: as ``read_interventions``.
        """
        own = {name: value for name, value in given.items() if name in self.of_runs}
        return self.run(own, "", outputs=(*OF_SITES, output))

    def intervention(self, item: Any, field: str) -> Intervention:
        """The intervention in the JSON ``item``, which errors name ``field``.

        Raises:
            Malformed, Invalid, TooLarge: as ``read_interventions``.
        """
        with within(field):
            return self._intervention(item, field)

    def run(
        self,
        given: Mapping[str, Any],
        field: str,
        positions: Indices | None = None,
        outputs: tuple[str, ...] = OF_SITES,
    ) -> OtherRun:
        """The run in the fields ``given``: texts with their options, files, or the model's own inputs.

        Raises:
            Malformed, Invalid, TooLarge: as ``read_interventions``.
        """
        texts = {key: value for key, value in given.items() if key in TEXTS}
        read = read_texts(self.reader, texts, self.model, self.max_text_bytes) if texts else None
        if read is not None and not read.is_single:
            raise Invalid("expected one text", "text")
        of_files = {key: value for key, value in given.items() if key in self.files.fields_for(self.model)}
        files = self._files(of_files)
        specs = {key: self.model.inputs[key] for key in given if key not in TEXTS and key not in of_files}
        named = {key: replace(spec, name=f"{field}.{key}") if field else spec for key, spec in specs.items()}
        masks = self.model.masks
        tensors = {key: self.reader.tensor(spec, given[key], key in masks) for key, spec in named.items()}
        made = {*tensors, *(f"{prefix}{IDS}" for prefix in (read.texts if read else ()))}
        if files is None:
            check_complete(made, self.model, outputs)
        elif field:
            files = self.files.within(files, field)
        return OtherRun(field, read, tensors, positions, files, outputs)

    def _files(self, given: Mapping[str, Any]) -> Any:
        """A reference to the files of a run; None if it has none."""
        if not given:
            return None
        self.file_run_count += 1
        if self.file_run_count > MAX_FILE_RUNS:
            raise Invalid(f"expected files in at most {MAX_FILE_RUNS} runs of a request", next(iter(given)))
        return self.files.read(given, self.model, self.reader)

    def _intervention(self, item: Any, field: str) -> Intervention:
        fields = self._fields(item, KNOWN)
        at = self._site(fields.get("at"))
        axes = axes_of(at)
        for name in SELECTING:
            if name in fields and name not in (*axes, "tokens"):
                there = ", ".join(axis for axis in axes if axis in SELECTING)
                raise Invalid(f"not an axis of {at}, which has {there}", name)
        selected = {name: self.indices(name, fields[name]) for name in SELECTING[:-1] if name in fields}
        tokens = self._tokens(fields, at)
        actions = [name for name in ACTIONS if name in fields and not (name == "scale" and "add" in fields)]
        if len(actions) != 1:
            got = f"got {' and '.join(actions)}" if actions else "there is none"
            raise Malformed(f"expected one of {', '.join(ACTIONS)}; {got}")
        for flag, action in FLAGS.items():
            if flag in fields and action not in fields:
                raise Malformed(f"requires {action}", flag)
        is_flag = {flag: bool(read_flag(fields, flag)) for flag in FLAGS}
        if is_flag["renormalize"] and not at.endswith(WEIGHTS):
            raise Invalid(f"not accepted at {at}: only weights have a sum", "renormalize")
        if is_flag["norm_match"] and (at.endswith(WEIGHTS) or "heads" in axes):
            raise Invalid(f"not accepted at {at}", "norm_match")
        scale = self._number("scale", fields.get("scale", 1.0))
        return Intervention(
            field,
            at,
            selected,
            tokens,
            add=self._vector(fields["add"], field, scale) if "add" in fields else None,
            replace=self._replacement(fields["replace"], field) if "replace" in fields else None,
            source=self._other_run("from", fields["from"], field) if "from" in fields else None,
            scale=scale,
            **is_flag,
        )

    def _fields(self, item: Any, known: Sequence[str]) -> dict[str, Any]:
        if not isinstance(item, JsonObject):
            raise Invalid(f"expected an object, got {describe(item)}")
        fields: dict[str, Any] = {}
        for name in item:
            if name in fields:
                raise Malformed("given twice", name)
            if name not in known:
                raise Malformed(f"unknown field{name_hint(name, known) or '; expected ' + ', '.join(known)}", name)
            value = self.reader.part(item[name])
            if value is not None:
                fields[name] = value
        return fields

    def _site(self, value: Any) -> str:
        there = ", ".join(self.sites.sites)
        if value is None:
            raise Invalid(f"missing (required); available: {there}", "at")
        if not isinstance(value, str) or value not in self.sites.sites:
            raise Invalid(f"expected one of {there}, got {describe(value)}", "at")
        return value

    def indices(self, name: str, value: Any) -> Indices:
        """The indices of an axis.

        Raises:
            Invalid: something else, or too many in all.
        """
        indices = read_indices(name, self.reader.items(name, value, MAX_ITEMS))
        self.item_count += len(indices.items)
        if self.item_count > MAX_ITEMS:
            raise Invalid(f"expected at most {MAX_ITEMS:,} indices and ranges in a request; select ranges", name)
        return indices

    def _tokens(self, fields: Mapping[str, Any], at: str) -> Sequence[str]:
        if "tokens" not in fields:
            return ()
        if at.endswith(WEIGHTS):
            raise Invalid("not accepted at weights, which have queries and keys", "tokens")
        if "positions" in fields:
            raise Malformed("cannot be given together with positions", "tokens")
        if self.model.tokenizer is None:
            raise Invalid(f"requires a tokenizer, which model '{self.model.name}' does not have", "tokens")
        tokens = self.reader.texts("tokens", fields["tokens"])
        if not tokens:
            raise Invalid("expected one or more tokens", "tokens")
        return tokens

    def _number(self, name: str, value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or abs(value) > MAX_FLOAT32:
            raise Invalid(f"expected a finite number, got {describe(value)}", name)
        return float(value)

    def _numbers(self, field: str, value: Any) -> Numbers:
        return self.reader.tensor(TensorSpec(field, np.dtype(np.float32), ("width",)), value)

    def _replacement(self, value: Any, field: str) -> Numbers | Literal["mean"]:
        if value == MEAN:
            return "mean"
        if isinstance(value, str):
            raise Invalid(f'expected numbers or "{MEAN}", got {describe(value)}', "replace")
        return self._numbers(f"{field}.replace", value)

    def _vector(self, value: Any, field: str, scale: float) -> Vector:
        is_run = isinstance(value, JsonObject) and "shape" not in value  # that a tensor has
        if not is_run:
            return Vector(self._numbers(f"{field}.add", value), scale=scale)
        own = {name: self.reader.part(value[name]) for name in ("minus", "scale") if name in value}
        minus = own.get("minus")
        with within(f"{field}.add") as inner:
            factor = self._number("scale", own.get("scale", 1.0))
            less = self._other_run("minus", minus, inner) if minus is not None else None
        return Vector(None, self._other_run("add", value, field, ("minus", "scale")), less, scale * factor)

    def _other_run(self, name: str, value: Any, field: str, others: Sequence[str] = ()) -> OtherRun:
        """Another run: texts, or the model's own inputs, and the positions of its activation."""
        with within(f"{field}.{name}") as inner:
            fields = self._fields(value, (*self.of_runs, "positions", *others))
            given = {key: value for key, value in fields.items() if key not in ("positions", *others)}
            positions = self.indices("positions", fields["positions"]) if "positions" in fields else None
            return self.run(given, inner, positions)
