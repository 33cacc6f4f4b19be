"""An ONNX graph that is ready to run. How its tensors reach the device depends on the kind of session."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnxruntime

from service.ort.io_binding import Shapes, run_bound
from service.ort.pinned_memory import PinnedPool

Arrays = Mapping[str, np.ndarray]
OnnxSession: TypeAlias = onnxruntime.InferenceSession
OnnxNode: TypeAlias = onnxruntime.NodeArg  # an input or output that a session declares
RunOptions: TypeAlias = onnxruntime.RunOptions


class Session:
    """A session whose outputs ONNX Runtime allocates. ``onnx`` is ONNX Runtime's own session.

    ``InferenceSession.run`` checks in Python what was checked before, for a twentieth of a short request's time. So the
    function that it calls is called directly.
    """

    def __init__(self, onnx: OnnxSession) -> None:
        self.onnx = onnx
        self._run = onnx._sess.run

    def run(self, inputs: Arrays, outputs: Sequence[str], options: RunOptions | None = None) -> dict[str, np.ndarray]:
        """The arrays of ``outputs``, by name. ``options`` let another thread end the run.

        Raises:
            Exception: ONNX Runtime's own.
        """
        return dict(zip(outputs, self._run(outputs, inputs, options), strict=True))


class BoundSession(Session):
    """A session that writes its outputs into memory of ``pool``.

    Args:
        output_shapes: the shapes and types of outputs, from the inputs and the outputs' names. None where they are not
            known before the run; ONNX Runtime then allocates the outputs.
    """

    def __init__(
        self,
        onnx: OnnxSession,
        pool: PinnedPool,
        output_shapes: Callable[[Arrays, Sequence[str]], Shapes] | None,
    ) -> None:
        super().__init__(onnx)
        self._pool = pool
        self._output_shapes = output_shapes

    def run(self, inputs: Arrays, outputs: Sequence[str], options: RunOptions | None = None) -> dict[str, np.ndarray]:
        shapes = self._output_shapes(inputs, outputs) if self._output_shapes else None
        return run_bound(self.onnx, inputs, outputs, shapes, self._pool, options)
