"""Files in a request as a source of tensors: the base of the fields ``images`` and ``audio``."""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from pydantic import BaseModel, Field

from service.base.cost import AssumedCost, CostModel
from service.base.errors import HeedError, Invalid
from service.base.messages import counted
from service.base.steps import Steps
from service.codec.json_parser import JsonArray, JsonObject
from service.codec.json_reader import JsonReader, describe
from service.codec.json_slices import LongText
from service.codec.long_tensor import NOT_BASE64
from service.http.direct import RequestContext
from service.inference.source import NO_FIELDS, FieldDefinitions, InputSource
from service.inference.stages import Stage, Stages
from service.model.model import Model

MAX_COUNT = 256  # of a request
FILE_NS = 20e6  # that a small file takes to be decoded and processed, at most about: too long for the event loop
HEADER_BYTE_NS = 10  # of a file whose header is read
MEMORY_BYTE_NS = 1  # of what it takes to decode and process a file
ITEM_BYTES = 16  # of a number of a tensor, while it is computed
MASK_ITEM_BYTES = 8  # int64; a mask has at most as many numbers as the tensor
ADDRESS = b"://"  # in a URL, after its scheme
LONGEST_SCHEME = 8
BASE64 = "base64"  # the name of a file's field, and the end of a data URL's media type
DATA_URL = b"data:"
LONGEST_TYPE = 256
BATCH = "batch"  # the name of an axis


class File(BaseModel, extra="forbid"):
    """A file in a list, where its length is limited by that of the body alone, and not by that of the list."""

    base64: str


@contextmanager
def decoding(field: str) -> Iterator[None]:
    """Whatever a damaged file makes of a library's parsers, but a lack of memory, is Invalid."""
    try:
        yield
    except (HeedError, MemoryError):
        raise
    except Exception:
        raise Invalid("the file is truncated or damaged", field) from None


F = TypeVar("F")  # a file whose header is read


class Processor(Protocol):
    """What computes a tensor of a decoded file."""

    @property
    def returns_mask(self) -> bool:
        """Whether another input, a mask of padding, follows from the files."""


P = TypeVar("P", bound=Processor)


@dataclass(frozen=True, slots=True)
class Files:
    """Files as base64; a single one is a request without the axis of the batch, if the input has that axis."""

    name: str  # of the field
    contents: Sequence[LongText]
    is_single: bool

    def field(self, index: int) -> str:
        """The place of a file in the request."""
        return self.name if self.is_single else f"{self.name}[{index}]"


class FileSource(InputSource[Files], Generic[F, P]):
    """Makes an input of files. ``processors`` has what computes it for each model, or why there is none."""

    stores_inputs = False
    name: ClassVar[str]  # of the field
    kinds: ClassVar[str]  # of files
    names: ClassVar[tuple[str, ...]]  # of the inputs, of which a model has one

    def __init__(self) -> None:
        self.processors: WeakKeyDictionary[Model, P | str] = WeakKeyDictionary()
        self._decoding = CostModel()
        self._opening, self._processing = AssumedCost(FILE_NS, HEADER_BYTE_NS), AssumedCost(FILE_NS, MEMORY_BYTE_NS)
        description = (
            f"a file of {self.kinds} as base64, or a list of at most {MAX_COUNT}, in place of "
            f"{' or '.join(self.names)}; the server does the steps of the model's processor"
        )
        self.fields: FieldDefinitions = {
            self.name: (str | list[str | File] | None, Field(None, description=description))
        }

    @abstractmethod
    def opened(self, content: bytearray, field: str) -> F:
        """The file ``content``.

        Raises:
            UnsupportedMedia, Invalid: it is of another kind, or broken.
        """

    @abstractmethod
    def check(self, files: Sequence[F], processor: P) -> None:
        """Check the sizes that the headers have.

        Raises:
            TooLarge, Invalid: a file is too large for the limits, or for the model.
        """

    @abstractmethod
    def memory(self, file: F, processor: P) -> int:
        """Upper bound in bytes on what it takes to decode and process ``file``, beside its tensor."""

    @abstractmethod
    def tensor(self, file: F, processor: P) -> np.ndarray:
        """The tensor of a file, without the axis of the batch.

        Raises:
            Invalid: it is broken.
        """

    @abstractmethod
    def beside(self, files: Sequence[F], processor: P) -> dict[str, np.ndarray]:
        """The mask of the padding of files whose tensors are computed, with the axis of the batch."""

    def input_of(self, model: Model) -> str | None:
        """The name of the input that the files of a model become."""
        return next((name for name in self.names if name in model.inputs), None)

    def fields_for(self, model: Model) -> FieldDefinitions:
        return self.fields if model in self.processors else NO_FIELDS

    def replaced(self, model: Model) -> Collection[str]:
        name = self.input_of(model)
        return (name,) if name is not None and not isinstance(self.processors.get(model, ""), str) else ()

    def within(self, reference: Files, field: str) -> Files:
        return replace(reference, name=f"{field}.{reference.name}")

    def read(self, given: Mapping[str, Any], model: Model, reader: JsonReader | None) -> Files | None:
        name, element = self.name, given.get(self.name)
        if element is None:
            return None
        if reader is None:
            raise Invalid("not accepted in V2: POST /v1/attention takes files", name)
        refused = self.processors[model]
        if isinstance(refused, str):
            kind = self.name.removesuffix("s")
            raise Invalid(
                f"model '{model.name}' cannot take {kind} files: {refused}; send {self.input_of(model)}", name
            )
        if isinstance(element, str | LongText):
            return Files(name, [_base64(element, name)], True)
        if not isinstance(element, JsonArray):
            raise Invalid(f"expected a file as base64, or a list of them, got {describe(element)}", name)
        if not 0 < len(element) <= MAX_COUNT:
            raise Invalid(f"expected 1 to {counted(MAX_COUNT, 'file')}, got {len(element)}", name)
        reader.brackets += 1
        contents = []
        for index, item in enumerate(element):
            if isinstance(item, JsonObject) and [*islice(item, 2)] == [BASE64]:
                item = reader.part(item[BASE64])
            contents.append(_base64(item, f"{name}[{index}]"))
        return Files(name, contents, False)

    def tensors(self, reference: Files, model: Model, context: RequestContext) -> Stages[dict[str, np.ndarray]]:
        processor, name = self.processors[model], self.input_of(model)
        assert not isinstance(processor, str), "read refuses it"
        assert name is not None
        files: list[F] = []
        for index, content in enumerate(reference.contents):
            field, size = reference.field(index), len(content.content)
            context.reservation.add(2 * size)  # the file, and its copy in its decoder
            decoded = yield Stage(self._decoding, size, _decoded(content, field))
            files.append((yield Stage(self._opening, len(decoded), partial(self.opened, decoded, field))))
            self.check(files, processor)
        values = np.empty((len(files), *map(int, model.inputs[name].shape[1:])), np.float32)
        sizes = [self.memory(file, processor) for file in files]
        mask_bytes = MASK_ITEM_BYTES * values.size if processor.returns_mask else 0
        context.reservation.add(max(sizes) + ITEM_BYTES * values[0].size + values.nbytes + mask_bytes)
        for index, (file, size) in enumerate(zip(files, sizes, strict=True)):
            values[index] = yield Stage(self._processing, size, partial(self.tensor, file, processor))
        made = {name: values, **(self.beside(files, processor) if processor.returns_mask else {})}
        omits_batch = reference.is_single and model.inputs[name].shape[0] == BATCH
        return {name: array[0] if omits_batch else array for name, array in made.items()}


def _base64(element: Any, field: str) -> LongText:
    """A file as base64, or as a data URL, which has it behind its first comma.

    Raises:
        Invalid: another element, or the address of a file.
    """
    if not isinstance(element, str | LongText):
        raise Invalid(f"expected a file as base64, got {describe(element)}", field)
    if isinstance(element, LongText):
        content = element.content
    else:
        content = memoryview("".join(element.splitlines()).encode("utf-8", "replace"))
    start = bytes(content[:LONGEST_TYPE]).lower()  # the type and the encoding of a data URL may have capitals
    if ADDRESS in start[: LONGEST_SCHEME + len(ADDRESS)]:
        raise Invalid("expected a file as base64; URLs are not loaded", field)
    if start.startswith(DATA_URL):
        kind, comma, _ = start.partition(b",")
        if not comma or not kind.endswith(b";" + BASE64.encode()):
            raise Invalid("expected a data URL with base64", field)
        content = content[len(kind) + 1 :]
    if not content:
        raise Invalid("empty", field)
    return LongText(content)


def _decoded(content: LongText, field: str) -> Steps[bytearray]:
    try:
        return (yield from content.base64())
    except ValueError:
        raise Invalid(NOT_BASE64, field) from None
