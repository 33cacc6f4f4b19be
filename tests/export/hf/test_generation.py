"""The graphs of steps of generation: their tokens and weights are transformers' own, or they are not written."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import pytest

from export.__main__ import main
from export.hf.description import block_of
from export.hf.generation import past, quantized, verification
from export.hf.generation.graphs import generation_graphs
from export.hf.pretrained import ModelRefused, load
from export.kernels.functions import DOMAIN
from export.verification.sessions import session
from heed_client.__main__ import main as client_main
from service.model.loader import open_version
from service.ort.provider import Provider
from tests.export.hf.generating import metadata_entry
from tests.support.families import Family, save
from tests.support.server import serving

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.fixture
def described(generating):
    return block_of(load(generating / "gpt"), "gpt")


def test_the_metadata_says_how_a_model_generates(generating):
    assert metadata_entry(generating / "models" / "gpt" / "1", "generation") == {
        "two_stacks": False, "counts_pictures": False, "past": [[4, 8]] * 4, "pads_left": True, "in_place": True,
        "tokens": {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1},
    }  # fmt: skip


def test_a_step_is_no_graph_of_requests(generating):
    folder = generating / "models" / "gpt" / "1"
    assert {"decode.onnx", "decode_output.onnx"} <= {file.name for file in folder.iterdir()}
    graphs = open_version(folder, Provider("cpu", "requested"), 1).graphs
    assert not any("past_key_0" in graph.inputs for graph in graphs)


def test_a_causal_model_needs_no_mask(generating):
    """With the mask between sequences of one row, which are never sent, 6,000 tokens took 577 MB in place of 37."""
    graph = onnx.load(generating / "models" / "gpt" / "1" / "fused.onnx", load_external_data=False).graph
    assert {node.op_type for node in graph.node if node.domain == DOMAIN} == {"Causal"}


def test_a_model_without_steps_says_why(texts_repository):
    metadata = session(texts_repository / "bert" / "1" / "model.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(metadata["heed"])["generation"] == {"refused": "BertModel does not generate"}


def test_tokens_that_the_input_does_not_have_are_not_generated(described, tmp_path):
    """As those of sound, which a head answers beside tokens of a text."""
    block, original = described
    narrow = replace(block, inputs={**block.inputs, "input_ids": replace(block.inputs["input_ids"], maximum=9)})
    with pytest.raises(ModelRefused, match="generates tokens that are not those of its input"):
        generation_graphs(narrow, original, None, tmp_path, False, lambda _: None)


def test_a_model_of_sound_without_tokens_does_not_generate(tmp_path):
    encoder = {
        "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "num_mel_bins": 16,
        "subsampling_conv_channels": 4, "conv_kernel_size": 3,
    }  # fmt: skip
    save(Family("ParakeetForCTC", {"encoder_config": encoder, "vocab_size": 9}), tmp_path / "saved")
    block, original = block_of(load(tmp_path / "saved", shapes={"input_features": (64, 16)}), "ctc")
    with pytest.raises(ModelRefused, match="ParakeetForCTC does not generate from tokens"):
        generation_graphs(block, original, None, tmp_path, False, lambda _: None)


@pytest.mark.extended
def test_attention_in_place_that_is_not_exact_is_replaced(described, tmp_path, monkeypatch):
    products = past._products
    monkeypatch.setattr(past, "_products", lambda weights, value: 1.01 * products(weights, value))
    generation = generation_graphs(*described, None, tmp_path, False, lambda _: None)
    assert not generation.entry["in_place"]


def test_weights_of_8_bits_are_rounded_by_half_a_scale_or_are_the_largest():
    """The largest number of a block is -128 scales, so that one of the other sign loses up to one."""
    matrix = np.random.default_rng(0).standard_normal((80, 50), np.float32)
    packed, scales = quantized._packed(matrix)
    assert packed.shape == (50, 3, quantized.BLOCK)
    numbers = ((packed.astype(np.float64) - 128) * scales.reshape(50, 3, 1)).reshape(50, -1)[:, :80].T
    scale = np.abs(np.repeat(scales.reshape(50, 3), quantized.BLOCK, axis=1)[:, :80].T)
    is_largest = np.abs(matrix) > 127.5 * scale
    assert (np.abs(numbers - matrix) <= np.where(is_largest, 1.01, 0.51) * scale).all()


@pytest.mark.extended
def test_steps_of_8_bits_have_their_errors_in_the_description(generating, tmp_path, capfd):
    command = ["hf", str(generating / "gpt"), "--repository", str(tmp_path), "--name", "small", "--quantize", "int8"]
    assert main(command) == 0
    printed = capfd.readouterr().out.splitlines()
    folder = tmp_path / "small" / "1"
    for name in ("decode", "decode_output"):
        nodes = Counter(node.op_type for node in onnx.load(folder / f"{name}.onnx").graph.node)
        assert nodes["MatMulNBits"] == 2 * 4 + 1  # of each of two layers, and the logits
        assert nodes["Gemm"] == 0
    entry = json.loads(session(folder / "model.onnx").get_modelmeta().custom_metadata_map["heed"])["generation"]
    errors = entry["quantized"]["errors"]
    logits, weights = logits_of(folder, entry), logits_of(generating / "models" / "gpt" / "1", entry)
    assert 1e-5 < np.abs(logits - weights).max() <= 2 * errors["output"]
    assert errors["output"] < 0.05 * np.ptp(weights)
    assert errors["weights"] < 0.1
    assert errors["tokens"] <= 2 * errors["output"]
    assert printed[-1].startswith("small: generates with weights of 8 bits")
    assert f": output {errors['output']:.3g}, " in printed[-1]
    with serving(tmp_path) as client:
        assert client.get("/v1/attention/small").json()["generate"]["quantized"] == entry["quantized"]
        assert client_main(["small", "--describe", "--url", str(client.base_url)]) == 0
    errors = f"  with weights of 8 bits; largest errors against float64: output {errors['output']:.3g}, "
    assert capfd.readouterr().out.splitlines()[-1].startswith(errors)


def logits_of(folder, entry):
    steps = verification.Steps(session(folder / "decode.onnx"), None, [tuple(shape) for shape in entry["past"]])
    prompt = np.array([[7, 40, 23, 11]])
    return steps.run([prompt], np.ones_like(prompt), {}, 0)[0]["logits"]


@pytest.mark.extended
def test_steps_that_are_not_exact_are_refused(described, tmp_path, monkeypatch):
    monkeypatch.setattr(verification, "budget_of", lambda _, exact: 1e-9 * np.abs(exact).max())
    with pytest.raises(ModelRefused, match=r"its steps differ from its whole run: decode .* tokens \w+: error"):
        generation_graphs(*described, None, tmp_path, False, lambda _: None)
