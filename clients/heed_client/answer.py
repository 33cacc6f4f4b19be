"""The result of a call that runs a block."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np


class TopK(NamedTuple):
    """The k largest weights of each query, largest first; both arrays are [..., m, k]."""

    indices: np.ndarray
    values: Any  # an array, or Quantized


class Quantized(NamedTuple):
    """Weights as uint8 of 0 to 255; a weight is its level times the scale, off by half the scale at most."""

    levels: np.ndarray
    scale: float

    def dequantized(self) -> np.ndarray:
        """The weights as float32."""
        return self.levels.astype(np.float32) * np.float32(self.scale)


class Answer(Mapping[str, Any]):
    """The requested outputs, as attributes (``answer.weights``) and as a mapping (``answer["weights"]``).

    Each output is an array; with ``weights_top_k``, ``weights`` is a ``TopK``, and with ``quantized`` weights of uint8
    are ``Quantized``. ``server_timing`` has the milliseconds that the server spent in each stage; ``request_id``
    identifies the request in the server's log.
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
