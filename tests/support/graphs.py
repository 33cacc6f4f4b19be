"""Foreign ONNX models that are computed by eye, written by hand: what somebody else might drop into the repository."""

import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

ONNX = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}


def write(folder: Path, nodes, inputs, outputs, initializers=()) -> None:
    """A model of ``nodes`` in ``folder``; inputs and outputs are (name, datatype, shape)."""
    folder.mkdir(parents=True, exist_ok=True)
    infos = [[helper.make_tensor_value_info(n, ONNX[t], s) for n, t, s in some] for some in (inputs, outputs)]
    graph = helper.make_graph(nodes, "by_hand", *infos, list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, folder / "model.onnx")


def mixed(folder: Path) -> None:
    """Four types in, four out, a fixed batch of 4: total = count + wide, and three echoes."""
    write(
        folder,
        [
            helper.make_node("Cast", ["count"], ["counted"], to=TensorProto.DOUBLE),
            helper.make_node("Add", ["counted", "wide"], ["total"]),
            helper.make_node("Identity", ["words"], ["said"]),
            helper.make_node("Not", ["flag"], ["unflagged"]),
            helper.make_node("Neg", ["count"], ["negative"]),
        ],
        [("count", "INT32", [4, "n"]), ("words", "BYTES", [4]), ("flag", "BOOL", [4]), ("wide", "FP64", [4, "n"])],
        [
            ("total", "FP64", [4, "n"]),
            ("said", "BYTES", [4]),
            ("unflagged", "BOOL", [4]),
            ("negative", "INT32", [4, "n"]),
        ],
    )


def adder(folder: Path, addend: float = 1.0) -> None:
    """y = x + z + addend, with a free batch axis."""
    write(
        folder,
        [helper.make_node("Add", ["x", "z"], ["sum"]), helper.make_node("Add", ["sum", "c"], ["y"])],
        [("x", "FP32", ["batch", 3]), ("z", "FP32", ["batch", 3])],
        [("y", "FP32", ["batch", 3])],
        [onnx.numpy_helper.from_array(np.float32(addend), "c")],
    )


def identity(folder: Path, datatype: str) -> None:
    """y = x, of one datatype, with a first dimension that no other tensor need share."""
    node = helper.make_node("Identity", ["x"], ["y"])
    write(folder, [node], [("x", datatype, ["n", "k"])], [("y", datatype, ["n", "k"])])


def product(folder: Path) -> None:
    """c = ab, whose inner dimensions have to agree, though no name says so."""
    node = helper.make_node("MatMul", ["a", "b"], ["c"])
    write(
        folder, [node], [("a", "FP32", ["rows", "k"]), ("b", "FP32", ["j", "columns"])], [("c", "FP32", [None, None])]
    )


def slow(folder: Path, steps: int) -> None:
    """x, times the identity, ``steps`` times."""
    eye = onnx.numpy_helper.from_array(np.eye(512, dtype=np.float32), "eye")
    names = ["x", *(f"x{i}" for i in range(1, steps)), "y"]
    nodes = [helper.make_node("MatMul", [a, "eye"], [b]) for a, b in pairwise(names)]
    write(folder, nodes, [("x", "FP32", ["batch", 512])], [("y", "FP32", ["batch", 512])], [eye])


def slow_to_load(folder: Path, steps: int) -> None:
    """y = x + a constant, which ONNX Runtime works out while it opens the graph: about a second for each step."""
    names = ["ones", *(f"m{i}" for i in range(steps))]
    nodes = [
        helper.make_node("ConstantOfShape", ["side"], ["ones"]),
        *(helper.make_node("MatMul", [a, "ones"], [b]) for a, b in pairwise(names)),
        helper.make_node("ReduceMax", [names[-1]], ["c"], keepdims=0),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    side = onnx.numpy_helper.from_array(np.array([3000, 3000], np.int64), "side")
    write(folder, nodes, [("x", "FP32", ["batch", 3])], [("y", "FP32", ["batch", 3])], [side])


def scalar(folder: Path) -> None:
    """y = x * by, where ``by`` is a single number that must be given."""
    node = helper.make_node("Mul", ["x", "by"], ["y"])
    write(folder, [node], [("x", "FP32", ["n"]), ("by", "FP32", [])], [("y", "FP32", ["n"])])


def lookup(folder: Path) -> None:
    """y = the rows of [[0], [10], [20]] that ``ids`` number; a run with another number fails."""
    table = onnx.numpy_helper.from_array(np.array([0, 10, 20], np.float32), "table")
    node = helper.make_node("Gather", ["table", "ids"], ["y"])
    write(folder, [node], [("ids", "INT64", ["batch", 1])], [("y", "FP32", ["batch", 1])], [table])


def rows(folder: Path) -> None:
    """y = x + 1, whose input is called as MLServer's NumpyRequestCodec calls the only one."""
    node = helper.make_node("Add", ["input-1", "one"], ["y"])
    one = onnx.numpy_helper.from_array(np.float32(1), "one")
    write(folder, [node], [("input-1", "FP32", ["batch", 3])], [("y", "FP32", ["batch", 3])], [one])


def columns(folder: Path) -> None:
    """total = price + count, and the words again: an input for each column of a table."""
    nodes = [
        helper.make_node("Cast", ["count"], ["counted"], to=TensorProto.DOUBLE),
        helper.make_node("Add", ["price", "counted"], ["total"]),
        helper.make_node("Identity", ["word"], ["said"]),
    ]
    inputs = [("price", "FP64", ["batch", 1]), ("count", "INT64", ["batch", 1]), ("word", "BYTES", ["batch", 1])]
    write(folder, nodes, inputs, [("total", "FP64", ["batch", 1]), ("said", "BYTES", ["batch", 1])])


def detector(folder: Path) -> None:
    """Named as object detectors are: the sizes again, the means of the images, and these negated."""
    nodes = [
        helper.make_node("Identity", ["orig_target_sizes"], ["labels"]),
        helper.make_node("GlobalAveragePool", ["images"], ["boxes"]),
        helper.make_node("Neg", ["boxes"], ["scores"]),
    ]
    inputs = [("images", "FP32", ["batch", 3, "h", "w"]), ("orig_target_sizes", "INT64", ["batch", 2])]
    boxes = [(name, "FP32", ["batch", 3, 1, 1]) for name in ("boxes", "scores")]
    write(folder, nodes, inputs, [("labels", "INT64", ["batch", 2]), *boxes])


def triton_simple(folder: Path, datatype: str = "INT32") -> None:
    """``simple`` of Triton's own tests, or ``simple_string``: sum and difference, whose axes have no names."""
    names = ["INPUT0", "INPUT1"]
    nodes = [helper.make_node(kind, names, [f"{kind}ed"]) for kind in ("Add", "Sub")]
    outputs = [helper.make_node("Identity", [node.output[0]], [f"OUTPUT{i}"]) for i, node in enumerate(nodes)]
    if datatype == "BYTES":
        numbers = [f"{name}_number" for name in names]
        casts = [helper.make_node("Cast", [a], [b], to=TensorProto.INT32) for a, b in zip(names, numbers, strict=True)]
        nodes = [*casts, *(helper.make_node(node.op_type, numbers, node.output) for node in nodes)]
        outputs = [helper.make_node("Cast", node.input, node.output, to=TensorProto.STRING) for node in outputs]
    tensors = [[(f"{kind}{i}", datatype, [None, 16]) for i in range(2)] for kind in ("INPUT", "OUTPUT")]
    write(folder, [*nodes, *outputs], *tensors)


def triton_identity(folder: Path, datatype: str = "FP32") -> None:
    """OUTPUT0 = INPUT0, whose second axis is free as well; neither has a name."""
    node = helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])
    write(folder, [node], [("INPUT0", datatype, [None, None])], [("OUTPUT0", datatype, [None, None])])


def triton_add_sub(folder: Path, batch: str | None = None) -> None:
    """As Triton's ``onnx_float32_float32_float32``: a vector of 16 a request, with ``batch`` as the name of the inputs'
    first axis and none for the outputs'."""
    nodes = [helper.make_node(kind, ["INPUT0", "INPUT1"], [f"OUTPUT{i}"]) for i, kind in enumerate(("Add", "Sub"))]
    inputs = [(f"INPUT{i}", "FP32", [batch, 16]) for i in range(2)]
    write(folder, nodes, inputs, [(f"OUTPUT{i}", "FP32", [None, 16]) for i in range(2)])


def scikit_learn(folder: Path) -> None:
    """A scaler and a logistic regression over the iris data, as skl2onnx 1.20 wrote them, zipmap off: X [None, 4]
    -> label [None] of texts, probabilities [None, 3]."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("iris.onnx"), folder / "model.onnx")


def centred(folder: Path) -> None:
    """y = x less the mean of all rows: as many rows as x, and no batch axis."""
    nodes = [
        helper.make_node("ReduceMean", ["x", "axis"], ["mean"], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["y"]),
    ]
    axis = onnx.numpy_helper.from_array(np.array([0], np.int64), "axis")
    write(folder, nodes, [("x", "FP32", [None, 3])], [("y", "FP32", [None, 3])], [axis])


def flipped(folder: Path) -> None:
    """y = x with its axes exchanged."""
    write(
        folder,
        [helper.make_node("Transpose", ["x"], ["y"])],
        [("x", "FP32", [None, None])],
        [("y", "FP32", [None, None])],
    )


def quotient(folder: Path) -> None:
    """y = -(2**63) // -x: where x = 1 the processor cannot say it, and ends the process by SIGFPE."""
    nodes = [helper.make_node("Neg", ["x"], ["negative"]), helper.make_node("Div", ["least", "negative"], ["y"])]
    least = onnx.numpy_helper.from_array(np.int64(-(2**63)), "least")
    write(folder, nodes, [("x", "INT64", [None, 1])], [("y", "INT64", [None, 1])], [least])


def huge(folder: Path) -> None:
    """y [None, 10**11] = 1, of an x [None, 1]: each row takes 400 GB."""
    nodes = [
        helper.make_node("Shape", ["x"], ["rows"], start=0, end=1),
        helper.make_node("Concat", ["rows", "width"], ["shape"], axis=0),
        helper.make_node("ConstantOfShape", ["shape"], ["y"]),
    ]
    width = onnx.numpy_helper.from_array(np.array([10**11], np.int64), "width")
    write(folder, nodes, [("x", "FP32", [None, 1])], [("y", "FP32", [None, None])], [width])


def endless(folder: Path) -> None:
    """y = x after a loop that never ends."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Identity", ["before"], ["after"])],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, [None, 1]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, [None, 1]),
        ],
    )
    loop = helper.make_node("Loop", ["", "yes", "x"], ["y"], body=body)
    write(
        folder,
        [loop],
        [("x", "FP32", [None, 1])],
        [("y", "FP32", [None, 1])],
        [onnx.numpy_helper.from_array(np.bool_(1), "yes")],
    )


def pairwise_scores(folder: Path) -> None:
    """scores = a bT, with the same free dimension twice in the output: no row of it is a request's."""
    nodes = [helper.make_node("Transpose", ["b"], ["bT"]), helper.make_node("MatMul", ["a", "bT"], ["scores"])]
    inputs = [(name, "FP32", ["batch", 2]) for name in "ab"]
    write(folder, nodes, inputs, [("scores", "FP32", ["batch", "batch"])])
