"""A graph that is cut out of a shared trace is the one that its own trace would give."""

from collections import Counter

from export.fast_path import fast_paths
from export.graph import export_graph
from export.joint_trace import joint_graphs
from models.catalogue import find


def test_a_cut_out_graph_is_the_one_of_its_own_trace():
    block = find("scaled_dot_product")
    module, paths = block.build(), fast_paths(block, cuda=True)
    graphs = joint_graphs(block, module, paths)
    assert graphs.keys() == {"flash", "padded", "causal", "masked", "fused_padded", "fused_masked"}
    for name, graph in graphs.items():
        own = export_graph(block, module, *paths[name].graph(block), paths[name])
        for part in ("input", "output", "initializer"):
            assert _names(graph, part) == _names(own, part)
        assert Counter(node.op_type for node in graph.graph.node) == Counter(node.op_type for node in own.graph.node)
        assert [function.name for function in graph.functions] == [function.name for function in own.functions]
        assert graph.opset_import == own.opset_import


def _names(model, part):
    return {entry.name for entry in getattr(model.graph, part)}
