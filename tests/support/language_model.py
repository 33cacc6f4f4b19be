"""A language model written by hand, as export describes one: the logits depend on the last token alone."""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.support.graphs import write
from tests.support.texts import SPECIAL, WORDS, save_tokenizer

VOCABULARY = len(SPECIAL) + len(WORDS) + 3  # three ids have no token, as where a vocabulary is padded
LOGITS = np.random.default_rng(3).normal(0, 2, (VOCABULARY, VOCABULARY)).astype(np.float32)
NODES = [  # weights: alike for every key that the mask has
    helper.make_node("Gather", ["table", "input_ids"], ["logits"]),
    helper.make_node("Mul", ["logits", "head_mask"], ["output"]),
    helper.make_node("Sub", ["input_ids", "input_ids"], ["zeros"]),
    helper.make_node("Add", ["zeros", "attention_mask"], ["all"]),
    helper.make_node("Cast", ["zeros"], ["floats"], to=onnx.TensorProto.FLOAT),
    helper.make_node("Cast", ["all"], ["mask"], to=onnx.TensorProto.FLOAT),
    helper.make_node("ReduceSum", ["mask", "last"], ["total"]),
    helper.make_node("Div", ["mask", "total"], ["shares"]),
    helper.make_node("Unsqueeze", ["shares", "as_keys"], ["keys"]),
    helper.make_node("Unsqueeze", ["floats", "as_queries"], ["queries"]),
    helper.make_node("Add", ["keys", "queries"], ["weights"]),
]
CONSTANTS = {
    "table": LOGITS,
    "attention_mask": np.ones((1, 1), np.int64),
    "head_mask": np.ones((1, 1), np.float32),
    "last": np.array([-1]),
    "as_keys": np.array([0, 2, 3]),
    "as_queries": np.array([0, 2, 4]),
}


def write_language_model(
    folder: Path, kind: str = "GPT2LMHeadModel", padding_side: str = "right", limit: int | None = 64
) -> None:
    """Write the version ``folder`` of a model that says that it is of the class ``kind``, with a tokenizer of words.

    It takes ``limit`` tokens; None = any number.
    """
    inputs = [
        ("input_ids", "INT64", ["batch", "n"]),
        ("attention_mask", "INT64", ["1|batch", "1|n"]),
        ("head_mask", "FP32", [1, 1]),
    ]
    outputs = [
        ("output", "FP32", ["batch", "n", VOCABULARY]),
        ("weights", "FP32", [1, "batch", 1, "n", "n"]),
    ]
    constants = [numpy_helper.from_array(array, name) for name, array in CONSTANTS.items()]
    write(folder, NODES, inputs, outputs, constants)
    file = folder / "model.onnx"
    model = onnx.load(file)
    helper.set_model_props(model, {"heed": json.dumps(_card(folder.parent.name, kind, limit))})
    onnx.save(model, file)
    save_tokenizer(folder, padding_side)


def _card(name: str, kind: str, limit: int | None) -> dict:
    masks = {"description": "mask", "minimum": 0, "maximum": 1}
    return {
        **{"block": name, "version": 1, "title": f"{kind} (by hand)", "description": "", "formula": "", "source": ""},
        **{
            "config": {"architectures": [kind]},
            "weights": "none",
            "multiples": {},
            "limits": {"n": limit} if limit else {},
        },
        "inputs": {
            "input_ids": {"description": "Token ids.", "minimum": 0, "maximum": VOCABULARY - 1},
            "attention_mask": masks,
            "head_mask": {"description": "factors"},
        },
        "outputs": {"output": {"description": "Logits."}, "weights": {"description": "Weights."}},
        **{"left_out": {}, "depth": 1, "learned": 1, "rows": ["batch", "n"], "example": {"input_ids": [[1, 2]]}},
        **{"tolerance": {}, "opset": 20, "exporter": "none"},
    }
