"""The twin that rounds after every operator, and the verification of exports in half precision by it."""

import json

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.__main__ import main
from export.verification.budget import error_budget
from export.verification.checks import checks, in_torch
from export.verification.rounding import rounding_twin
from export.verification.sessions import session
from models import reference
from models.catalogue import BLOCKS
from models.precision import in_precision
from tests.support.halves import HALVES

TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
# Of the operators that blocks use, those that ONNX Runtime's CUDA provider has for bfloat16 (its OperatorKernels.md).
ON_CUDA = {
    "Add", "Cast", "Concat", "Div", "Erf", "Expand", "Gather", "Gelu", "Identity", "LayerNormalization", "MatMul",
    "Mul", "Relu", "Reshape", "Shape", "Slice", "Softmax", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip


def by_hand(dtype, nodes):
    """A graph of ``nodes`` from a and b to y, all of type ``dtype``, with c = 0.1 in it."""
    graph = f"by_hand (T[n] a, T[n] b) => (T[n] y) {{ {nodes} }}".replace("T[", f"{dtype}[")
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {graph}')
    model.graph.initializer.append(numpy_helper.from_array(np.array([0.1], TYPES[dtype]), "c"))
    return model


@pytest.mark.parametrize("dtype", TYPES)
def test_the_twin_rounds_after_every_operator(dtype, tmp_path):
    numpy_type, half = TYPES[dtype], TensorProto.DataType.Value(dtype.upper())
    half_precision = "sum = Add(a, b) part = Mul(sum, c)"
    in_double = f"wide = Cast<to={TensorProto.DOUBLE}>(part) power = Exp(wide) y = Cast<to={half}>(power)"
    run = session(rounding_twin(by_hand(dtype, f"{half_precision} {in_double}"), tmp_path).SerializeToString())
    a, b = np.random.default_rng(0).standard_normal((2, 10_000)).astype(numpy_type)
    power = np.exp(((a + b) * numpy_type(0.1)).astype(np.float64))
    actual = run.run(None, {"a": a.astype(np.float32), "b": b.astype(np.float32)})[0]
    np.testing.assert_array_equal(actual, power.astype(numpy_type).astype(np.float32))


def test_a_type_that_is_not_known_is_refused(tmp_path):
    model = by_hand("bfloat16", "x = Unheard(a) y = Neg(x)")
    with pytest.raises(ValueError, match="the type of x, an output of Unheard, is not known"):
        rounding_twin(model, tmp_path)


# Of each family of formulas a block, in the type in which its sums are most likely to overflow, or its errors to grow.
PROVED = [
    ("scaled_dot_product", "bfloat16"), ("additive", "bfloat16"), ("cosine", "float16"), ("kernel", "float16"),
    ("linear", "bfloat16"), ("multiplicative", "float16"), ("encoder", "float16"),
]  # fmt: skip


def test_budgets_grow_from_float32_to_float16_to_bfloat16():
    """The error of a type exceeds the budget of a more precise type."""
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((1, 2, 33, 16), np.float32) for name in ("query", "key", "value")}
    block = BLOCKS["scaled_dot_product"]
    budgets = {}
    for dtype in ("float32", "float16", "bfloat16"):
        half = in_precision(block, dtype)

        def refer(given, reference_dtype, half=half):
            if reference_dtype == np.float32:
                return in_torch(half, half.build(), given)
            return reference.attention(**given, dtype=reference_dtype)

        budgets[dtype] = error_budget(refer, inputs, 2, dtype)["output"]
    assert budgets["float32"] * 1000 < budgets["float16"] < budgets["bfloat16"] / 4


@pytest.mark.parametrize("name", HALVES)
def test_a_half_block_describes_itself(name, halves):
    block = HALVES[name]
    for file in (halves / name / "1").iterdir():
        model = onnx.load(file)
        spec = json.loads(next(entry.value for entry in model.metadata_props if entry.key == "heed"))
        assert spec["block"] == name
        for value in [*model.graph.input, *model.graph.output]:
            declared = block.inputs[value.name].dtype if value.name in block.inputs else block.dtype
            assert value.type.tensor_type.elem_type == helper.np_dtype_to_tensor_dtype(np.dtype(declared))
    spec = json.loads(onnx.load(halves / name / "1" / "model.onnx").metadata_props[0].value)
    assert spec["dtype"] == block.dtype
    assert "after every operator" in spec["verified"]
    assert set(spec["tolerance"]) == set(block.outputs)


@pytest.mark.extended
@pytest.mark.parametrize(("name", "dtype"), PROVED)
def test_a_block_in_half_precision(name, dtype, few_examples, tmp_path):
    assert main([name, "--dtype", dtype, "--repository", str(tmp_path), "--jobs", "1"]) == 0
    for file in (tmp_path / f"{name}_{dtype}" / "1").glob("*.onnx"):
        assert_on_cuda(onnx.load(file))


def test_operators_on_bfloat16_are_those_that_cuda_has(halves):
    assert_on_cuda(onnx.load(halves / "efficient_bfloat16" / "1" / "model.onnx"))


def assert_on_cuda(model):
    """Only operators of ON_CUDA and fused ones have inputs or outputs in bfloat16."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    types = {value.name: value.type.tensor_type.elem_type for value in [*graph.value_info, *graph.input, *graph.output]}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    used = {
        node.op_type
        for node in graph.node
        if not node.domain and any(types.get(name) == TensorProto.BFLOAT16 for name in [*node.input, *node.output])
    }
    assert used <= ON_CUDA


def test_half_precision_files_can_be_checked_on_a_provider_with_their_operators(halves):
    """A GPU has all of them; for these two blocks, the CPU has them, too."""
    for name, block in HALVES.items():
        files = sorted((halves / name / "1").glob("*.onnx"), key=lambda file: file.stem != "model")
        runs = {file.stem: session(file) for file in files}
        results = list(checks(block, block.build(), runs, {}, large=True))
        assert {check.graph for check in results} >= {"torch in float32", "model", "plain"}
        assert all(check.ok for check in results)
