"""Foreign ONNX models that are computed by eye, written by hand: what somebody else might drop into the repository."""

import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, parser

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


def parse(folder: Path, text: str) -> None:
    """A model in ``folder`` from ONNX's own notation: (inputs) => (outputs) <constants> { nodes }."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> by_hand {text}'), folder / "model.onnx")


def notation(datatype: str) -> str:
    """A datatype of the protocol as ONNX's notation has it."""
    return TensorProto.DataType.Name(ONNX[datatype]).lower()


def mixed(folder: Path) -> None:
    """Four types in, four out, a fixed batch of 4: total = count + wide, and three echoes."""
    inputs = "int32[4, n] count, string[4] words, bool[4] flag, double[4, n] wide"
    outputs = "double[4, n] total, string[4] said, bool[4] unflagged, int32[4, n] negative"
    total = "counted = Cast<to=11>(count) total = Add(counted, wide)"
    echoes = "said = Identity(words) unflagged = Not(flag) negative = Neg(count)"
    parse(folder, f"({inputs}) => ({outputs}) {{ {total} {echoes} }}")


def adder(folder: Path, addend: float = 1.0) -> None:
    """y = x + z + addend, with a free batch axis."""
    tensors = "(float[batch, 3] x, float[batch, 3] z) => (float[batch, 3] y)"
    parse(folder, f"{tensors} <float c = {{{addend}}}> {{ sum = Add(x, z) y = Add(sum, c) }}")


def identity(folder: Path, datatype: str) -> None:
    """y = x, of one datatype, with a first dimension that no other tensor need share."""
    parse(folder, "(T[n, k] x) => (T[n, k] y) { y = Identity(x) }".replace("T", notation(datatype)))


def product(folder: Path) -> None:
    """c = ab, whose inner dimensions have to agree, though no name says so."""
    parse(folder, "(float[rows, k] a, float[j, columns] b) => (float[?, ?] c) { c = MatMul(a, b) }")


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
    parse(folder, "(float[n] x, float by) => (float[n] y) { y = Mul(x, by) }")


def places(folder: Path) -> None:
    """y = the places of the numbers in x that are not 0, so that the numbers choose the shape of y."""
    parse(folder, "(float[n, k] x) => (int64[2, ?] y) { y = NonZero(x) }")


def lookup(folder: Path) -> None:
    """y = the rows of [[0], [10], [20]] that ``ids`` number; a run with another number fails."""
    tensors = "(int64[batch, 1] ids) => (float[batch, 1] y)"
    parse(folder, f"{tensors} <float[3] table = {{0, 10, 20}}> {{ y = Gather(table, ids) }}")


def rows(folder: Path) -> None:
    """y = x + 1, whose input is called as MLServer's NumpyRequestCodec calls the only one."""
    node = helper.make_node("Add", ["input-1", "one"], ["y"])
    one = onnx.numpy_helper.from_array(np.float32(1), "one")
    write(folder, [node], [("input-1", "FP32", ["batch", 3])], [("y", "FP32", ["batch", 3])], [one])


def columns(folder: Path) -> None:
    """total = price + count, and the words again: an input for each column of a table."""
    inputs = "double[batch, 1] price, int64[batch, 1] count, string[batch, 1] word"
    nodes = "counted = Cast<to=11>(count) total = Add(price, counted) said = Identity(word)"
    parse(folder, f"({inputs}) => (double[batch, 1] total, string[batch, 1] said) {{ {nodes} }}")


def detector(folder: Path) -> None:
    """Named as object detectors are: the sizes again, the means of the images, and these negated."""
    inputs = "float[batch, 3, h, w] images, int64[batch, 2] orig_target_sizes"
    outputs = "int64[batch, 2] labels, float[batch, 3, 1, 1] boxes, float[batch, 3, 1, 1] scores"
    nodes = "labels = Identity(orig_target_sizes) boxes = GlobalAveragePool(images) scores = Neg(boxes)"
    parse(folder, f"({inputs}) => ({outputs}) {{ {nodes} }}")


def triton_simple(folder: Path, datatype: str = "INT32") -> None:
    """``simple`` of Triton's own tests, or ``simple_string``: sum and difference, whose axes have no names."""
    nodes = "OUTPUT0 = Add(INPUT0, INPUT1) OUTPUT1 = Sub(INPUT0, INPUT1)"
    if datatype == "BYTES":
        numbers = "a = Cast<to=6>(INPUT0) b = Cast<to=6>(INPUT1) sum = Add(a, b) difference = Sub(a, b)"
        nodes = f"{numbers} OUTPUT0 = Cast<to=8>(sum) OUTPUT1 = Cast<to=8>(difference)"
    tensors = "(T[?, 16] INPUT0, T[?, 16] INPUT1) => (T[?, 16] OUTPUT0, T[?, 16] OUTPUT1)"
    parse(folder, f"{tensors.replace('T[', notation(datatype) + '[')} {{ {nodes} }}")


def triton_identity(folder: Path, datatype: str = "FP32") -> None:
    """OUTPUT0 = INPUT0, whose second axis is free as well; neither has a name."""
    kind = notation(datatype)
    parse(folder, f"({kind}[?, ?] INPUT0) => ({kind}[?, ?] OUTPUT0) {{ OUTPUT0 = Identity(INPUT0) }}")


def triton_add_sub(folder: Path, batch: str = "?") -> None:
    """As Triton's ``onnx_float32_float32_float32``: a vector of 16 a request, with ``batch`` as the name of the inputs'
    first axis and none for the outputs'."""
    tensors = f"(float[{batch}, 16] INPUT0, float[{batch}, 16] INPUT1) => (float[?, 16] OUTPUT0, float[?, 16] OUTPUT1)"
    parse(folder, f"{tensors} {{ OUTPUT0 = Add(INPUT0, INPUT1) OUTPUT1 = Sub(INPUT0, INPUT1) }}")


def scikit_learn(folder: Path) -> None:
    """A scaler and a logistic regression over the iris data, as skl2onnx 1.20 wrote them, zipmap off: X [None, 4]
    -> label [None] of texts, probabilities [None, 3]."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("iris.onnx"), folder / "model.onnx")


def centred(folder: Path) -> None:
    """y = x less the mean of all rows: as many rows as x, and no batch axis."""
    nodes = "mean = ReduceMean<keepdims=1>(x, axis) y = Sub(x, mean)"
    parse(folder, f"(float[?, 3] x) => (float[?, 3] y) <int64[1] axis = {{0}}> {{ {nodes} }}")


def flipped(folder: Path) -> None:
    """y = x with its axes exchanged."""
    parse(folder, "(float[?, ?] x) => (float[?, ?] y) { y = Transpose(x) }")


def quotient(folder: Path) -> None:
    """y = -(2**63) // -x: where x = 1 the processor cannot say it, and ends the process by SIGFPE."""
    nodes = "negative = Neg(x) y = Div(least, negative)"
    parse(folder, f"(int64[?, 1] x) => (int64[?, 1] y) <int64 least = {{{-(2**63)}}}> {{ {nodes} }}")


def huge(folder: Path) -> None:
    """y [None, 10**11] = 1, of an x [None, 1]: each row takes 400 GB."""
    nodes = "rows = Shape<start=0, end=1>(x) shape = Concat<axis=0>(rows, width) y = ConstantOfShape(shape)"
    parse(folder, f"(float[?, 1] x) => (float[?, ?] y) <int64[1] width = {{{10**11}}}> {{ {nodes} }}")


def endless(folder: Path) -> None:
    """y = x after a loop that never ends."""
    body = "body (int64 turn, bool go, float[?, 1] before) => (bool go_on, float[?, 1] after)"
    turn = "go_on = Identity(go) after = Identity(before)"
    loop = f'y = Loop<body = {body} {{ {turn} }}>("", yes, x)'
    parse(folder, f"(float[?, 1] x) => (float[?, 1] y) <bool yes = {{1}}> {{ {loop} }}")


def pairwise_scores(folder: Path) -> None:
    """scores = a bT, with the same free dimension twice in the output: no row of it is a request's."""
    tensors = "(float[batch, 2] a, float[batch, 2] b) => (float[batch, batch] scores)"
    parse(folder, f"{tensors} {{ bT = Transpose(b) scores = MatMul(a, bT) }}")
