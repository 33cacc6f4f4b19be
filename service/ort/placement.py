"""Where the nodes of a graph run, as ONNX Runtime has assigned them; a session's list of providers does not tell."""

from collections import Counter
from collections.abc import Mapping

import onnxruntime

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
RECORDED = "session.record_ep_graph_assignment_info"  # the option with which a session has to be opened
HEAVY = frozenset(  # operators for which a GPU is used
    ("MatMul", "FusedMatMul", "Gemm", "FusedGemm", "Einsum", "Softmax", "Attention", "MultiHeadAttention")
)
# Operators whose cost depends on the values of their inputs, not only on the shapes.
VALUE_DEPENDENT = frozenset(
    (
        *("Loop", "Scan", "If", "SequenceMap", "NonZero", "NonMaxSuppression", "Unique", "Compress", "StringSplit"),
        *("Range", "ConstantOfShape", "Expand", "Tile", "OneHot", "Resize", "Upsample", "Pad", "AffineGrid", "DFT"),
        *("RandomNormal", "RandomUniform", "Multinomial", "BlackmanWindow", "HammingWindow", "HannWindow"),
        *("CenterCropPad", "Col2Im", "MaxUnpool", "STFT", "MelWeightMatrix", "BeamSearch", "GreedySearch"),
    )
)

Placement = Mapping[str, Counter[str]]  # provider -> operator -> nodes


def placement(session: onnxruntime.InferenceSession) -> Placement:
    """The nodes of ``session``, those inside loops and branches too, as they were assigned to providers."""
    placed: dict[str, Counter[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        placed.setdefault(part.ep_name, Counter()).update(node.op_type for node in part.get_nodes())
    return placed


def heavy_on_cpu(by_provider: Placement) -> Counter[str]:
    """The operators that should run on the GPU, and run on the CPU."""
    return Counter(
        {operator: nodes for operator, nodes in by_provider.get(CPU, Counter()).items() if operator in HEAVY}
    )


def is_predictable(by_provider: Placement) -> bool:
    """Whether the cost of a run follows from the shapes of its inputs: no operator depends on their values."""
    return all(VALUE_DEPENDENT.isdisjoint(nodes) for nodes in by_provider.values())


def format_placement(by_provider: Placement) -> str:
    """``CUDA 30 (2 MatMul, 1 Softmax), CPU 5``."""
    return ", ".join(
        f"{provider_label(provider)} {_format_nodes(nodes)}"
        for provider, nodes in sorted(by_provider.items(), reverse=True)
    )


def provider_label(provider: str) -> str:
    """A provider's name without its suffix: CPU, CUDA."""
    return provider.removesuffix("ExecutionProvider")


def _format_nodes(nodes: Counter[str]) -> str:
    heavy = ", ".join(f"{nodes[operator]} {operator}" for operator in sorted(HEAVY & nodes.keys()))
    return f"{nodes.total()} ({heavy})" if heavy else str(nodes.total())
