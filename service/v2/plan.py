"""What a V2 request says beside its numbers. Clients say the same again and again: then it is not read again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from service.body import Body
from service.json_document import numbers
from service.json_tensor import cast
from service.model import Model, Need
from service.turns import Steps
from service.v2.attachment import Attachment, hold_to_length
from service.v2.skeleton import Skeleton


@dataclass(frozen=True, slots=True)
class Wanted:
    """One output asked for: as binary data or JSON, and as its tensor or its ``classes`` largest."""

    name: str
    binary: bool
    classes: int = 0


@dataclass(frozen=True, slots=True)
class Listed:
    """An input whose numbers are a list in the JSON."""

    name: str
    shape: tuple[int, ...]
    said: np.dtype

    def array(self, content: memoryview) -> Steps[np.ndarray]:
        """The tensor, of a flat list; a long one takes several steps.

        Raises:
            ValueError: it is no flat list of numbers, or not as many as the shape says.
            Invalid: a number that the type does not hold.
        """
        pieces = []
        for piece in numbers(content, self.said.kind):
            pieces.append(cast(self.name, piece, self.said))
            yield
        return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)).reshape(self.shape)


@dataclass(slots=True)
class Plan:
    """The parameters, where the tensors are found, and what to answer."""

    parameters: Mapping[str, np.ndarray]
    attachments: Sequence[Attachment]
    lists: Sequence[Listed]
    outputs: Sequence[Wanted]
    timeout: int = 0  # microseconds; 0 = none
    priority: int = 0  # 1 is the highest; 0 = none said
    rows: int = 1  # this and the next follow from the shapes
    need: Need | None = None
    written: int = 0  # numbers that became text in the last answer
    frame: tuple[Sequence[tuple[int, ...]], list[bytes]] | None = None  # shapes of an answer, and its JSON
    names: list[str] = field(init=False)  # of the outputs
    length: int = field(init=False)  # bytes of all attachments

    def __post_init__(self) -> None:
        self.names = [wanted.name for wanted in self.outputs]
        self.length = sum(attachment.size for attachment in self.attachments)

    def take(self, attached: Body, model: Model) -> dict[str, np.ndarray]:
        """The parameters, and the tensors that lie in the bytes behind the JSON.

        Raises:
            Malformed: more or fewer bytes than the JSON says.
            Invalid: bytes that are no texts.
        """
        if len(attached) != self.length:
            hold_to_length(self.attachments, len(attached), model.name)
        inputs = dict(self.parameters)
        for attachment in self.attachments:
            inputs[attachment.name] = attachment.array(attached)
        return inputs

    def keep(self, cut: Skeleton, model: Model) -> None:
        """Remember it for the next request to ``model`` whose JSON has this skeleton, where that tells all.

        A number or flag among the tensors may choose another graph the next time: such a plan is not kept.
        """
        tensors = {of.name for of in self.attachments} | {of.name for of in self.lists}
        numeric = all(of.said.kind in "fiu" and of.said == model.inputs[of.name].dtype for of in self.lists)
        told = len(cut.lists) == len(self.lists) and cut.is_plain
        if told and numeric and tensors.isdisjoint(model.parameters):
            model.remember(cut.content, self)
