"""What a block answered."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np


class Largest(NamedTuple):
    """Of each query's weights the k largest [..., m, k], largest first."""

    indices: np.ndarray
    values: np.ndarray


class Answer(Mapping[str, Any]):
    """The outputs asked for, as attributes (``answer.weights``) and as a mapping (``answer["weights"]``).

    Each is an array of the rank of the query's; with ``weights_top_k``, ``weights`` is ``Largest``. ``server_timing``
    is what the server spent, in milliseconds, by stage; ``request_id`` is the answer's name in its log.
    """

    def __init__(
        self,
        block: str,
        outputs: Mapping[str, Any],
        server_timing: Mapping[str, float] | None = None,
        request_id: str | None = None,
    ) -> None:
        self.block = block
        self.server_timing = dict(server_timing or {})
        self.request_id = request_id
        self._outputs = dict(outputs)

    def __getitem__(self, name: str) -> Any:
        return self._outputs[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._outputs:
            raise AttributeError(f"{name!r} is not in this answer: outputs={[*self.__dict__.get('_outputs', ())]}")
        return self._outputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)

    def __repr__(self) -> str:
        shapes = (
            f"{name}: {list(np.shape(part))}" for name, part in self._outputs.items() if isinstance(part, np.ndarray)
        )
        return f"<Answer of {self.block}: {', '.join(shapes)}>"
