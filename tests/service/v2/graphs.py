"""Foreign ONNX models that are computed by eye, written by hand: what somebody else might drop into the repository."""

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


def scalar(folder: Path) -> None:
    """y = x * by, where ``by`` is a single number that must be given."""
    node = helper.make_node("Mul", ["x", "by"], ["y"])
    write(folder, [node], [("x", "FP32", ["n"]), ("by", "FP32", [])], [("y", "FP32", ["n"])])


def lookup(folder: Path) -> None:
    """y = the rows of [[0], [10], [20]] that ``ids`` number; a run with another number fails."""
    table = onnx.numpy_helper.from_array(np.array([0, 10, 20], np.float32), "table")
    node = helper.make_node("Gather", ["table", "ids"], ["y"])
    write(folder, [node], [("ids", "INT64", ["batch", 1])], [("y", "FP32", ["batch", 1])], [table])
