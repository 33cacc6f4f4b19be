"""A version of a model, from its folder to a ``Model`` that has run once."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from service.base.cost import CostModel
from service.model.batch_axis import BatchAxis, batch_axis
from service.model.batching import BatchingRules
from service.model.calibration import calibrate
from service.model.checks import OutputShapes
from service.model.graph import Graph, MultiThreadedSession
from service.model.model import Model
from service.model.spec import CANONICAL, WEIGHTS_FILE, BlockSpec, FastPathSpec, Signature
from service.ort.onnx_metadata import metadata
from service.ort.pinned_memory import plain
from service.ort.placement import CUDA, format_placement, heavy_on_cpu, is_predictable, placement
from service.ort.provider import Provider, open_session
from service.ort.session import BoundSession, OnnxNode, OnnxSession, Session
from service.tensors.spec import DTYPES, TensorSpec

log = logging.getLogger("heed")

MIN_PAIR_NS = 1e-3  # of a multiply-add in a thread of a CPU, where every pair of query and key is one in memory


def load_version(
    folder: Path,
    provider: Provider,
    threads: int,
    max_batch_size: int = 0,
    batch_models: str = "",
    must_batch: bool = False,
) -> Model:
    """The version in ``folder``, opened, run, calibrated, and with the rules by which its requests share runs.

    Args:
        threads: of one long run.
        max_batch_size: rows of a request, where the model has a batch axis.
        batch_models: names of foreign models whose requests may share runs, with commas; ``all`` for every one.
        must_batch: refuse a model without a batch axis.

    Raises:
        ValueError: it has to have a batch axis, and has none.
        Exception: ONNX Runtime's own, for a file it cannot load or run.
    """
    model = open_version(folder, provider, threads)
    log_placement(model)
    axis = batch_axis(model.signature, folder) if max_batch_size else BatchAxis(reason="max_batch_size is 0")
    if must_batch and not axis.tensors:
        raise ValueError(f"max_batch_size {max_batch_size} cannot be honoured, no batch axis: {axis.reason}")
    batching, names = None, batch_models.split(",")
    if model.spec:
        stackable = calibrate(model)
        model = replace(model, graphs=list(stackable))
        stacks = frozenset(graph for graph in stackable if stackable[graph])
        batching = BatchingRules(model.signature, axis.tensors, stacks)
    elif not axis.tensors:
        level = logging.WARNING if model.name in names else logging.INFO
        log.log(level, "model %s has no batch axis: %s", model.name, axis.reason)
    elif batch_models == "all" or model.name in names:
        batching = BatchingRules(model.signature, axis.tensors, frozenset(model.graphs))
    max_batch_size = max_batch_size if axis.tensors else 0
    return replace(model, max_batch_size=max_batch_size, batched=axis.tensors, batching=batching)


def open_version(folder: Path, provider: Provider, threads: int) -> Model:
    """The version in ``folder``, which has not run yet.

    Raises:
        ValueError: a tensor's type cannot be sent in a request, or the CPU cannot compute in the block's type.
        Exception: ONNX Runtime's own, for a file it cannot load.
    """
    name, canonical = folder.parent.name, folder / CANONICAL
    entry = metadata(canonical).get("heed")
    spec = BlockSpec(**json.loads(entry)) if entry else None
    others = {
        file: json.loads(metadata(file).get("heed", "{}"))
        for file in sorted(folder.glob("*.onnx"))
        if file != canonical
    }
    paths = {file: _fast_path(entry) for file, entry in others.items() if "feature" not in entry}
    # A session that prepacks has a copy of its weights. Only small requests gain by it: one copy is enough.
    shares_weights = (folder / WEIGHTS_FILE).is_file()
    common = next((file for file, path in paths.items() if path and path.is_common), canonical)

    def opened(file: Path, threads: int) -> OnnxSession:
        return open_session(file, provider, threads, prepack=not shares_weights or file == common)

    sessions = dict(_open_sessions(name, spec, {canonical: None, **paths}, provider, opened))
    if spec and spec.dtype != "float32" and provider.name == "cpu":
        log.info("model %s: the CPU computes %s in float32, which is slower", name, spec.dtype)
    signature = _signature(spec, sessions[canonical])
    pool = provider.pinned if spec else None  # the shapes of a foreign graph's outputs are not known before the run
    pool = pool or (plain() if signature.has_bfloat16 else None)
    output_shapes = OutputShapes(signature) if spec else None

    def session_of(onnx: OnnxSession) -> Session:
        return BoundSession(onnx, pool, output_shapes) if pool else Session(onnx)

    def with_more_threads(file: Path) -> MultiThreadedSession:
        return MultiThreadedSession(lambda: session_of(opened(file, threads)), threads)

    placements = {file: placement(session) for file, session in sessions.items()}
    providers = sessions[canonical].get_providers()
    has_threads = threads > 1 and providers[0] != CUDA
    graphs = [
        _graph(
            session_of(session),
            spec,
            paths.get(file),
            spec is not None or is_predictable(placements[file]),
            providers[0] != CUDA,
            with_more_threads(file) if has_threads else None,
        )
        for file, session in sessions.items()
    ]
    return Model(
        name,
        int(folder.name),
        signature,
        sorted(graphs, key=Graph.preference),
        {file.stem: nodes for file, nodes in placements.items()},
        providers,
        provider,
    )


def _open_sessions(
    name: str,
    spec: BlockSpec | None,
    files: Mapping[Path, FastPathSpec | None],
    provider: Provider,
    opened: Callable[[Path, int], OnnxSession],
) -> Iterator[tuple[Path, OnnxSession]]:
    """The graphs that the provider can run; the canonical one, which has no ``FastPathSpec``, must be among them."""
    for file, path in files.items():
        if path and path.provider not in (None, provider.name):
            continue
        try:
            yield file, opened(file, 1)
        except Exception as error:
            if path:
                log.warning("model %s: %s is not used, because it cannot be opened: %s", name, file.name, error)
            elif spec and spec.dtype == "bfloat16" and provider.name == "cpu":
                raise ValueError("bfloat16 needs CUDA: ONNX Runtime's CPU has no kernels for it") from error
            else:
                raise


def _signature(spec: BlockSpec | None, canonical: OnnxSession) -> Signature:
    inputs = {node.name: _tensor(node, True) for node in canonical.get_inputs()}
    inputs |= {node.name: _tensor(node, False) for node in canonical.get_overridable_initializers()}
    if spec:  # an ONNX session does not keep the order of required and optional inputs; the specification does
        inputs = {name: inputs[name] for name in spec.inputs}
    return Signature(spec, inputs, {node.name: _tensor(node, True) for node in canonical.get_outputs()})


def _tensor(node: OnnxNode, required: bool) -> TensorSpec:
    if node.type not in DTYPES:
        hint = "; skl2onnx writes a tensor with options={'zipmap': False}" if node.type.startswith("seq(map(") else ""
        raise ValueError(f"{node.name} is a {node.type}, which a request cannot contain{hint}")
    return TensorSpec(node.name, np.dtype(DTYPES[node.type]), tuple(node.shape), required)


def _fast_path(entry: Mapping[str, Any]) -> FastPathSpec | None:
    """The specification in a fast path's metadata; None for a graph that is no fast path."""
    return FastPathSpec(**entry) if "fast_path" in entry else None


def _graph(
    session: Session,
    spec: BlockSpec | None,
    path: FastPathSpec | None,
    predictable: bool,
    on_cpu: bool,
    multi_threaded: MultiThreadedSession | None,
) -> Graph:
    onnx = session.onnx
    inputs = frozenset(node.name for node in [*onnx.get_inputs(), *onnx.get_overridable_initializers()])
    outputs = frozenset(node.name for node in onnx.get_outputs())
    defaults = {name: one.default for name, one in spec.inputs.items() if one.default is not None} if spec else {}
    fixed = {name: value for name, value in defaults.items() if name not in inputs} | (path.fixes if path else {})
    has_pairs = spec is not None and (path is None or path.rows is None)
    cost = CostModel(MIN_PAIR_NS) if has_pairs and on_cpu else CostModel()
    return Graph(session, inputs, outputs, path, fixed, predictable, cost, multi_threaded)


def log_placement(model: Model) -> None:
    """Log where the nodes of each graph run; on CUDA a heavy one left to the CPU is a warning."""
    on_cuda = model.provider.name == "cuda"
    for graph, nodes in model.placement.items():
        log.log(
            logging.INFO if on_cuda else logging.DEBUG, "model %s, %s: %s", model.name, graph, format_placement(nodes)
        )
        left = heavy_on_cpu(nodes)
        if on_cuda and left:
            names = ", ".join(f"{count} {operator}" for operator, count in sorted(left.items()))
            log.warning("model %s, %s: CUDA does not support %s, which run on the CPU", model.name, graph, names)
