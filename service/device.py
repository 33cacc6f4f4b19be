"""How runs reach the device: bound to memory that it shares, or as CUDA graphs where they repeat."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime

from service.bound import Shapes, run_bound
from service.cuda_graphs import Captured
from service.host_memory import HostMemory

Arrays = Mapping[str, np.ndarray]


class Device:
    """Runs sessions whose answers are to lie in ``memory``.

    Runs are as many at a time as the engine has threads: each has its own stream, so that one is copied while another
    is computed. With ``graphs`` they take turns in one thread: ONNX Runtime captures a CUDA graph for the thread that
    runs it, and while it does, no other thread of the process may ask CUDA for memory.
    """

    def __init__(self, memory: HostMemory, graphs: bool = False) -> None:
        self._memory = memory
        self._turns = ThreadPoolExecutor(1, thread_name_prefix="heed-device") if graphs else None

    def run(
        self,
        session: onnxruntime.InferenceSession,
        inputs: Arrays,
        outputs: Sequence[str],
        shapes: Shapes | None,
        captured: Captured | None = None,
    ) -> dict[str, np.ndarray]:
        """``outputs`` of ``session``; ``captured`` are its CUDA graphs.

        Raises:
            Exception: ONNX Runtime's own.
        """
        if self._turns is None:
            return run_bound(session, inputs, outputs, shapes, self._memory)
        return self._turns.submit(self._in_turn, session, inputs, outputs, shapes, captured).result()

    def _in_turn(
        self,
        session: onnxruntime.InferenceSession,
        inputs: Arrays,
        outputs: Sequence[str],
        shapes: Shapes | None,
        captured: Captured | None,
    ) -> dict[str, np.ndarray]:
        found = captured.run(inputs, outputs, shapes) if captured and shapes is not None else None
        return run_bound(session, inputs, outputs, shapes, self._memory) if found is None else found
