"""The graphs of steps of generation: their tokens and weights are transformers' own, or they are not written."""

import json

import numpy as np
import pytest

from export.hf.description import block_of
from export.hf.generation import past, verification
from export.hf.generation.graphs import generation_graphs
from export.hf.pretrained import ModelRefused, load
from export.verification.sessions import session
from service.model.loader import open_version
from service.ort.provider import Provider
from tests.export.hf.generating import check_generation

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.fixture
def described(generating):
    return block_of(load(generating / "gpt"), "gpt")


def test_tokens_and_weights_are_those_of_generate(generating):
    assert check_generation(generating / "gpt", generating / "models" / "gpt" / "1", "gpt 2") == {
        "two_stacks": False, "past": [[4, 8]] * 4, "pads_left": True, "in_place": True,
        "tokens": {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1},
    }  # fmt: skip


def test_a_step_is_no_graph_of_requests(generating):
    folder = generating / "models" / "gpt" / "1"
    assert {"decode.onnx", "decode_output.onnx"} <= {file.name for file in folder.iterdir()}
    graphs = open_version(folder, Provider("cpu", "requested"), 1).graphs
    assert not any("past_key_0" in graph.inputs for graph in graphs)


def test_a_model_without_steps_says_why(texts_repository):
    metadata = session(texts_repository / "bert" / "1" / "model.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(metadata["heed"])["generation"] == {"refused": "BertModel does not generate"}


def test_attention_in_place_that_is_not_exact_is_replaced(described, tmp_path, monkeypatch):
    products = past._products
    monkeypatch.setattr(past, "_products", lambda weights, value: 1.01 * products(weights, value))
    generation = generation_graphs(*described, None, tmp_path, lambda _: None)
    assert not generation.entry["in_place"]


def test_steps_that_are_not_exact_are_refused(described, tmp_path, monkeypatch):
    monkeypatch.setattr(verification, "budget_of", lambda _, exact: 1e-9 * np.abs(exact).max())
    with pytest.raises(ModelRefused, match=r"its steps differ from its whole run: decode .* tokens \w+: error"):
        generation_graphs(*described, None, tmp_path, lambda _: None)
