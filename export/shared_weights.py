"""One file of weights for all graphs of a version: ONNX external data, so that every session maps the same pages."""

from hashlib import sha256
from pathlib import Path

import onnx

NAME = "weights.bin"
LEAST = 1024  # bytes; smaller tensors stay in the graph
PAGE = 4096


class SharedWeights:
    """``folder/weights.bin``: each different tensor once, at the start of a page."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / NAME
        self._places: dict[bytes, int] = {}

    def take(self, graph: onnx.GraphProto) -> None:
        """Move the tensors of ``graph`` into the file, or let them point at what is there already."""
        with self._file.open("ab") as file:
            for tensor in graph.initializer:
                raw = tensor.raw_data
                if len(raw) < LEAST:
                    continue
                digest = sha256(raw).digest()
                if digest not in self._places:
                    file.write(bytes(-file.tell() % PAGE))
                    self._places[digest] = file.tell()
                    file.write(raw)
                onnx.external_data_helper.set_external_data(tensor, NAME, self._places[digest], len(raw))
                tensor.ClearField("raw_data")
