"""What the JSON of a V2 request says. Clients say the same again and again, and only the bytes behind it differ:
then it is not read again."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from service.model import Graph, Model
from service.shape import Sizes
from service.v2.attachment import Attachment, hold_to_length

MOST_PLANS = 256  # kept for each model; what was said first goes first
LONGEST = 4096  # bytes of JSON; a longer one is read again


@dataclass(frozen=True, slots=True)
class Wanted:
    """One output asked for: as binary data or JSON, and as its tensor or its ``classes`` largest."""

    name: str
    binary: bool
    classes: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """What follows from the shapes, once they are known to be right."""

    sizes: Sizes
    rows: int
    graph: Graph


@dataclass(slots=True)
class Plan:
    """The inputs that came in the JSON, where the others lie in the bytes, and what to answer."""

    inputs: dict[str, np.ndarray]
    attachments: list[Attachment]
    outputs: list[Wanted]
    id: str | None = None
    timeout: int = 0  # microseconds; 0 = none
    priority: int = 0  # 1 is the highest; 0 = none said
    names: list[str] = field(init=False)  # of the outputs
    length: int = field(init=False)  # bytes of all attachments
    held: Held | None = None
    header: tuple[Sequence[tuple[int, ...]], bytes] | None = None  # shapes of an answer, and its JSON

    def __post_init__(self) -> None:
        self.names = [wanted.name for wanted in self.outputs]
        self.length = sum(attachment.size for attachment in self.attachments)

    def arrays(self, attached: bytes | memoryview, model: Model) -> dict[str, np.ndarray]:
        """All inputs.

        Raises:
            Malformed: more or fewer bytes than the JSON says.
            Invalid: bytes that are no texts.
        """
        if len(attached) != self.length:
            hold_to_length(self.attachments, len(attached), model.name)
        inputs = self.inputs.copy()
        for attachment in self.attachments:
            inputs[attachment.name] = attachment.array(attached)
        return inputs

    def keep(self, content: bytes, model: Model) -> None:
        """Remember it for the next request to ``model`` whose JSON is ``content``.

        A number or flag that lies in the bytes may choose another graph the next time; such a plan is not kept.
        """
        if len(content) <= LONGEST and all(attachment.shape for attachment in self.attachments):
            if len(model.plans) >= MOST_PLANS:
                model.plans.pop(next(iter(model.plans)), None)
            model.plans[content] = self
