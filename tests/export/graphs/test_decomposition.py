"""What an export need not trace or compute again changes nothing in the graph."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.onnx._internal.exporter import _core as exporter

from export.graphs.decomposition import OPSET, operators, traced, without_repetition
from export.graphs.graph import export_graph
from export.graphs.joint_trace import joint_graphs
from export.kernels.fast_path import fast_paths
from export.verification.sessions import session
from models.catalogue import find


class MixedTypes(nn.Module):
    def forward(self, inputs):
        count, flags, x = inputs["count"], inputs["flags"], inputs["x"]
        return (count / 2 + x * count).reshape(-1), torch.add(flags, x), count.square() + 0.5


@pytest.mark.filterwarnings("ignore")  # about deprecated functions that torch itself calls
def test_casts_are_those_of_torch():
    inputs = {"count": torch.arange(3), "flags": torch.tensor([True, False, True]), "x": torch.randn(3)}
    shapes = {name: {0: Dim.DYNAMIC} for name in inputs}
    own = exporter.export(
        traced(MixedTypes(), inputs, shapes), registry=operators(), opset_version=OPSET, verbose=False
    )
    program = traced(MixedTypes(), inputs, shapes)
    with without_repetition():
        quick = exporter.export(program, registry=operators(), opset_version=OPSET, verbose=False)
    casts = [node.op_type for node in quick.model_proto.graph.node].count("Cast")
    assert casts >= 3
    assert _nodes(quick.model_proto) == _nodes(own.model_proto)
    run = session(quick.model_proto.SerializeToString())
    outputs = run.run(None, {f"inputs_{name}": tensor.numpy() for name, tensor in inputs.items()})
    for actual, expected in zip(outputs, MixedTypes()(inputs), strict=True):
        np.testing.assert_allclose(actual, expected.numpy(), rtol=1e-6)


def _nodes(model):
    """Operators, what they read and their attributes; values are numbered, as their names hold counters."""
    numbers = {}

    def numbered(names):
        return [numbers.setdefault(name, len(numbers)) for name in names]

    return [
        (node.op_type, numbered(node.input), numbered(node.output), [str(attribute) for attribute in node.attribute])
        for node in model.graph.node
    ]


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


class Branch(nn.Module):
    """Its code depends on a number."""

    def forward(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        x = inputs["x"]
        return [x if x.sum().item() > 1 else -x]


def test_a_program_that_torch_cannot_trace_is_not_printed(capfd):
    with pytest.raises(Exception, match="data-dependent"):
        traced(Branch(), {"x": torch.ones(3, 4)}, {"x": {0: Dim.DYNAMIC}})
    assert capfd.readouterr().err == ""


class Scatter(nn.Module):
    """Rows in the places of a mask, as the vectors of pictures are."""

    def forward(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        return [inputs["x"].masked_scatter(inputs["mask"][..., None], inputs["rows"])]


@pytest.mark.parametrize("count", [5, 0])
def test_rows_are_scattered_and_places_without_a_row_stay(count):
    """torch has no value for these."""
    x, mask = torch.randn(2, 4, 3), torch.tensor([[True, False, True, True], [False, True, False, True]])
    examples = {"x": x, "mask": mask, "rows": torch.randn(4, 3)}
    program = traced(Scatter(), examples, {name: {0: Dim.DYNAMIC} for name in examples})
    with without_repetition():
        graph = exporter.export(
            program,
            registry=operators(),
            opset_version=OPSET,
            input_names=[*examples],
            output_names=["y"],
            verbose=False,
        ).model_proto
    rows = torch.randn(count, 3)
    (found,) = session(graph.SerializeToString()).run(
        None, {"x": x.numpy(), "mask": mask.numpy(), "rows": rows.numpy()}
    )
    expected = x.masked_scatter(mask[..., None], rows) if count else x
    np.testing.assert_array_equal(found, expected.numpy())


class Computed(nn.Module):
    """What a function computes of x."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, inputs):
        return self.function(inputs["x"])


def buckets(x):
    boundaries = torch.arange(1 / 7, 1.0, 1 / 7)
    return [torch.bucketize(x, boundaries, right=right) for right in (False, True)]


def almost_neutral(x):
    """The epsilon of a norm may be 1e-8: without it a row of zeros is NaN."""
    return [x + 1e-8, x - 1e-8, x * (1 + 1e-6), x / (1 + 1e-6)]


def rotated(x):
    """Complex numbers of rotary embeddings, as DeepSeek-V2 and Llama 4 have them."""
    angles = torch.polar(torch.ones_like(x), x) * 1.5
    return [torch.view_as_real(torch.view_as_complex(torch.stack([x, -x], -1)) * angles[:, None]).flatten(1)]


def changed_in_place(x):
    """As the experts' outputs are summed; a scatter of other operators follows."""
    total = torch.zeros_like(x)
    total.add_(x).mul_(2)
    return [1.0 - total.to(torch.int64), *rotated(total)]


def reduced(x):
    """Also no numbers."""
    pairs, none = x[:, None].expand(-1, 2), x[:0, None]
    return [*(of.sum(-1) for of in (pairs, none)), pairs.sum((-1, -2)), none.mean(-1), (none > 0).all(-1)]


EDGES = torch.arange(1 / 7, 1.0, 1 / 7)  # of buckets; the last bit decides


@pytest.mark.filterwarnings("ignore")  # about deprecated functions that torch itself calls
@pytest.mark.parametrize(
    ("function", "x", "rtol"),
    [
        (buckets, torch.cat([EDGES, torch.arange(7) * (1.0 / torch.tensor(7)), torch.tensor([-1, 2.0])]), 0),
        (almost_neutral, torch.tensor([0.0, 1e-8, 1.0]), 1e-7),
        (reduced, torch.linspace(1, 2, 7), 1e-6),
        (rotated, torch.linspace(-2, 2, 7), 1e-6),
        (changed_in_place, torch.linspace(-2, 2, 7), 1e-6),
    ],
)
def test_numbers_are_those_of_torch(function, x, rtol):
    program = traced(Computed(function), {"x": x}, {"x": {0: Dim.DYNAMIC}})
    with without_repetition():
        graph = exporter.export(program, registry=operators(), opset_version=OPSET, verbose=False).model_proto
    found = session(graph.SerializeToString()).run(None, {"inputs_x": x.numpy()})
    for actual, expected in zip(found, function(x), strict=True):
        assert actual.dtype == expected.numpy().dtype
        np.testing.assert_allclose(actual, expected.numpy(), rtol=rtol, atol=0)
