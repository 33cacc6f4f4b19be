"""One file of weights for all graphs of a version, as ONNX external data: all sessions map the same pages of memory."""

from hashlib import sha256
from pathlib import Path

import onnx
import onnx_ir as ir

NAME = "weights.bin"
MIN_BYTES = 1024  # smaller tensors stay in the graph
PAGE_BYTES = 4096


class SharedWeights:
    """Writes ``folder/weights.bin``: equal tensors once, each at the start of a page."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / NAME
        self._offsets: dict[bytes, int] = {}

    def move(self, graph: onnx.GraphProto) -> None:
        """Replace the large tensors of ``graph`` by references to the file, and append those that the file lacks."""
        for tensor in graph.initializer:
            raw = tensor.raw_data
            if len(raw) >= MIN_BYTES:
                onnx.external_data_helper.set_external_data(tensor, NAME, self._offset(raw), len(raw))
                tensor.ClearField("raw_data")

    def move_all(self, model: ir.Model) -> None:
        """``move`` for a model exported by torch, one tensor at a time, since it may have more than 2 GB."""
        for name, value in model.graph.initializers.items():
            tensor = value.const_value
            if tensor is not None and tensor.nbytes >= MIN_BYTES:
                raw, shape = tensor.tobytes(), ir.Shape(tensor.shape.numpy())
                value.const_value = ir.ExternalTensor(
                    NAME, self._offset(raw), len(raw), tensor.dtype, shape=shape, name=name, base_dir=self._file.parent
                )

    def _offset(self, raw: bytes) -> int:
        """The offset of these bytes in the file, to which they are appended if it lacks them."""
        digest = sha256(raw).digest()
        if digest not in self._offsets:
            with self._file.open("ab") as file:
                file.write(bytes(-file.tell() % PAGE_BYTES))
                self._offsets[digest] = file.tell()
                file.write(raw)
        return self._offsets[digest]
