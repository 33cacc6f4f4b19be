"""Where the nodes of a graph run, as ONNX Runtime has assigned them; a session's list of providers does not say."""

from collections import Counter
from collections.abc import Mapping

import onnxruntime

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
RECORDED = "session.record_ep_graph_assignment_info"  # what a session has to be opened with
HEAVY = frozenset(  # operators that a GPU is there for
    ("MatMul", "FusedMatMul", "Gemm", "FusedGemm", "Einsum", "Softmax", "Attention", "MultiHeadAttention")
)

Placement = Mapping[str, Counter[str]]  # provider -> operator -> nodes


def placement(session: onnxruntime.InferenceSession) -> Placement:
    """The nodes of ``session``, those inside loops and branches too, as they were when providers took theirs."""
    found: dict[str, Counter[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        found.setdefault(part.ep_name, Counter()).update(node.op_type for node in part.get_nodes())
    return found


def heavy_on_cpu(of: Placement) -> Counter[str]:
    """The operators that ought to run on the GPU, and do not."""
    return Counter({operator: nodes for operator, nodes in of.get(CPU, Counter()).items() if operator in HEAVY})


def written(of: Placement) -> str:
    """``CUDA 30 (2 MatMul, 1 Softmax), CPU 5``."""
    return ", ".join(f"{short(provider)} {_told(nodes)}" for provider, nodes in sorted(of.items(), reverse=True))


def short(provider: str) -> str:
    """A provider's name as people say it."""
    return provider.removesuffix("ExecutionProvider")


def _told(nodes: Counter[str]) -> str:
    heavy = ", ".join(f"{nodes[operator]} {operator}" for operator in sorted(HEAVY & nodes.keys()))
    return f"{nodes.total()} ({heavy})" if heavy else str(nodes.total())
