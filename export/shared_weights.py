"""One file of weights for all graphs of a version, as ONNX external data: all sessions map the same pages of memory."""

from hashlib import sha256
from pathlib import Path

import onnx

NAME = "weights.bin"
MIN_BYTES = 1024  # smaller tensors stay in the graph
PAGE_BYTES = 4096


class SharedWeights:
    """Writes ``folder/weights.bin``: equal tensors once, each at the start of a page."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / NAME
        self._offsets: dict[bytes, int] = {}

    def move(self, graph: onnx.GraphProto) -> None:
        """Replace the large tensors of ``graph`` by references to the file, and append those that it does not have."""
        with self._file.open("ab") as file:
            for tensor in graph.initializer:
                raw = tensor.raw_data
                if len(raw) < MIN_BYTES:
                    continue
                digest = sha256(raw).digest()
                if digest not in self._offsets:
                    file.write(bytes(-file.tell() % PAGE_BYTES))
                    self._offsets[digest] = file.tell()
                    file.write(raw)
                onnx.external_data_helper.set_external_data(tensor, NAME, self._offsets[digest], len(raw))
                tensor.ClearField("raw_data")
