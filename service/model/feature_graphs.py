"""Graphs of a version that only requests of a feature need: opened at the first of these, as most never come."""

import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

from service.base.errors import Invalid
from service.model.graph import Graph, MultiThreadedSession
from service.model.model import Model
from service.model.spec import WEIGHTS_FILE
from service.ort.provider import open_session
from service.ort.session import Session


class FeatureGraphs:
    """The graphs in ``folder`` by file name. A request has its model; the model is freed after the last one.

    Those whose names begin with one of ``mapped`` have no copy of weights that are in a file: their runs have many rows
    (``open_session``).
    """

    def __init__(self, folder: Path, model: Model, threads: int, mapped: tuple[str, ...] = ()) -> None:
        self._folder = folder
        self._threads = threads
        self._mapped = mapped if (folder / WEIGHTS_FILE).exists() else ()
        self._model = weakref.ref(model)
        self._lock = threading.Lock()
        self._graphs: dict[str, Graph] = {}

    @property
    def model(self) -> Model:
        """The model, which its caller holds."""
        model = self._model()
        assert model is not None, "a request has its model"
        return model

    def are_open(self, names: Sequence[str]) -> bool:
        """Whether ``graph`` returns all of these at once."""
        return self._graphs.keys() >= {*names}

    def open(self, names: Sequence[str]) -> None:
        """Open these graphs, which takes seconds for a large model.

        Raises:
            Invalid: as ``graph``.
        """
        for name in names:
            self.graph(name)

    def graph(self, name: str) -> Graph:
        """The graph of that file name.

        Raises:
            Invalid: the version's files were removed before the first request that needs it.
        """
        graph = self._graphs.get(name)
        if graph is not None:  # without the lock: a thread holds it while it opens another graph
            return graph
        with self._lock:
            if name not in self._graphs:
                try:
                    self._graphs[name] = self._opened(name)
                except Exception as error:
                    raise Invalid(f"{name}.onnx of model '{self.model.name}' cannot be opened: {error}") from None
            return self._graphs[name]

    def beside(self, graph: Graph, name: str) -> Graph:
        """The graph of that file name, with several threads where ``graph`` has them."""
        other = self.graph(name)
        several = other.multi_threaded
        has_one = graph.multi_threaded is not None
        return other if several is None or has_one else several.graph_with(other)

    def _opened(self, name: str) -> Graph:
        def session(threads: int) -> Session:
            prepack = not name.startswith(self._mapped)
            return Session(open_session(self._folder / f"{name}.onnx", self.model.provider, threads, prepack))

        alone = session(1)
        onnx = alone.onnx
        inputs = frozenset(node.name for node in [*onnx.get_inputs(), *onnx.get_overridable_initializers()])
        outputs = frozenset(node.name for node in onnx.get_outputs())
        several = MultiThreadedSession(lambda: session(self._threads), self._threads) if self._threads > 1 else None
        return Graph(alone, inputs, outputs, multi_threaded=several)
