"""The result of a call that runs a block."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np


class TopK(NamedTuple):
    """The k largest weights of each query, largest first; both arrays are [..., m, k]."""

    indices: np.ndarray
    values: np.ndarray


class Answer(Mapping[str, Any]):
    """The requested outputs, as attributes (``answer.weights``) and as a mapping (``answer["weights"]``).

    Each output is an array of the query's rank; with ``weights_top_k``, ``weights`` is a ``TopK``. ``server_timing``
    has the milliseconds that the server spent in each stage; ``request_id`` identifies the request in the server's log.
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
            f"{name}: {list(array.shape)}" for name, array in self._outputs.items() if isinstance(array, np.ndarray)
        )
        return f"<Answer of {self.block}: {', '.join(shapes)}>"
