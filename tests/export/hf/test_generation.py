"""The graphs of steps of generation: their tokens and weights are transformers' own, or they are not written."""

import json

import numpy as np
import pytest

from export.__main__ import main
from export.hf.description import block_of
from export.hf.generation import past, verification
from export.hf.generation.graphs import generation_graphs
from export.hf.pretrained import ModelRefused, load
from export.verification.sessions import session
from service.model.loader import open_version
from service.ort.provider import Provider
from tests.export.hf.generating import check_generation
from tests.support.families import FAMILIES, save

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.fixture(scope="module")
def exported(once):
    """A folder with a GPT-2, and a model repository with it."""

    def fill(folder):
        save(FAMILIES["gpt 2"], folder / "model")
        assert main(["hf", str(folder / "model"), "--name", "gpt", "--repository", str(folder / "models")]) == 0

    return once("gpt 2 that generates", fill)


@pytest.fixture
def described(exported):
    return block_of(load(exported / "model"), "gpt")


def test_tokens_and_weights_are_those_of_generate(exported):
    assert check_generation(exported / "model", exported / "models" / "gpt" / "1", "gpt 2") == {
        "two_stacks": False, "past": [[4, 8]] * 4, "pads_left": True, "in_place": True,
        "tokens": {"bos_token_id": 50256, "eos_token_id": 50256},
    }  # fmt: skip


def test_a_step_is_no_graph_of_requests(exported):
    folder = exported / "models" / "gpt" / "1"
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
