"""CUDA graphs: runs that repeat in their shapes are recorded once and replayed, which launches all kernels at one time.

A graph replays the very addresses it was captured with, so each shape has buffers of its own on the device. Only what
is small is captured: what takes long gains nothing by quicker launches. Not captured either are graphs with an input
that ONNX Runtime reads on the CPU, as its value would be captured with the rest.
"""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod

import numpy as np
import onnxruntime

from service.bfloat16 import BFLOAT16, ELEMENT
from service.bound import Shapes, contiguous, read, value_of

log = logging.getLogger("heed")

REPEATED = 3  # runs of one shape, from which it is captured
MOST_SHAPES = 32  # of one graph: the first that repeat
MOST_BYTES = 4 << 20  # of the tensors of a run

Arrays = Mapping[str, np.ndarray]


class Captured:
    """The CUDA graphs of one graph of a model. To be run by one thread alone.

    Args:
        opened: opens a session that captures.
        device: "cuda"; with "cpu" all is done but the capturing, which that provider does not know.
        number: which of the devices.
    """

    def __init__(
        self, opened: Callable[[], onnxruntime.InferenceSession], device: str = "cuda", number: int = 0
    ) -> None:
        self._opened = opened
        self._where = device, number
        self._session: onnxruntime.InferenceSession | None = None
        self._is_refused = False
        self._seen: Counter[Hashable] = Counter()
        self.shapes: dict[Hashable, _Fixed] = {}

    def run(self, inputs: Arrays, outputs: Sequence[str], shapes: Shapes) -> dict[str, np.ndarray] | None:
        """What a captured graph answers; None where there is none for these shapes, or not yet."""
        key = tuple(outputs), tuple((name, array.shape) for name, array in inputs.items())
        fixed = self.shapes.get(key)
        if fixed is None and (self._is_refused or not self._is_due(key, inputs, outputs, shapes)):
            return None
        try:
            if fixed is None:
                fixed = self._capture(key, inputs, outputs, shapes)
            return fixed.run(inputs)
        except Exception as error:  # the ordinary run, which comes next, says whether it is the device's end
            log.info("runs of a graph go on without CUDA graphs: %s", error)
            self._is_refused = True
            self.shapes.clear()
            return None

    def _is_due(self, key: Hashable, inputs: Arrays, outputs: Sequence[str], shapes: Shapes) -> bool:
        of_outputs = sum(prod(shape) * dtype.itemsize for shape, dtype in (shapes[name] for name in outputs))
        of_all = of_outputs + sum(array.nbytes for array in inputs.values())
        if of_all > MOST_BYTES or len(self.shapes) >= MOST_SHAPES:
            return False
        if len(self._seen) > 32 * MOST_SHAPES:
            self._seen.clear()  # shapes that hardly repeat
        self._seen[key] += 1
        return self._seen[key] >= REPEATED

    def _capture(self, key: Hashable, inputs: Arrays, outputs: Sequence[str], shapes: Shapes) -> "_Fixed":
        if self._session is None:
            self._session = self._opened()
            elsewhere = {of.name for of in self._session.get_input_memory_infos()} - {self._where[0].capitalize()}
            if elsewhere:
                raise ValueError(f"inputs are read on {', '.join(sorted(elsewhere))}")
        own = len(self.shapes) + 1  # 0 is ONNX Runtime's own
        fixed = _Fixed(self._session, own, inputs, {name: shapes[name] for name in outputs}, self._where)
        self.shapes[key] = fixed
        return fixed


class _Fixed:
    """Runs of one shape, in buffers that stay."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        number: int,
        inputs: Arrays,
        outputs: Shapes,
        where: tuple[str, int],
    ) -> None:
        self._session = session
        self._options = onnxruntime.RunOptions()
        self._options.add_run_config_entry("gpu_graph_id", str(number))
        self._binding = session.io_binding()
        self._inputs = {name: _buffer(array.shape, array.dtype, where) for name, array in inputs.items()}
        self._outputs = {name: _buffer(shape, dtype, where) for name, (shape, dtype) in outputs.items()}
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in self._outputs.items():
            self._binding.bind_ortvalue_output(name, value)

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        for name, value in self._inputs.items():
            array = inputs[name]
            value.update_inplace(
                onnxruntime.OrtValue(value_of(contiguous(array))) if array.dtype == BFLOAT16 else array
            )
        self._session.run_with_iobinding(self._binding, self._options)
        return {name: read(value._get_c_value()).copy() for name, value in self._outputs.items()}


def _buffer(shape: Sequence[int], dtype: np.dtype, where: tuple[str, int]) -> onnxruntime.OrtValue:
    element = ELEMENT if dtype == BFLOAT16 else dtype
    return onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(shape), element, *where)
