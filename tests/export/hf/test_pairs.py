"""Encoders and decoders of two types in one model: TrOCR, Donut, speech translation, BERT beside BERT, T5Gemma."""

import numpy as np
import pytest
import torch
import transformers

from export.__main__ import main
from export.hf.description import block_of
from export.hf.pretrained import load
from tests.export.hf.generating import check_generation, encoder_input
from tests.support.application import running
from tests.support.media import files, text_of
from tests.support.pairs import PAIRS, save

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
SLACK = 4  # of two float32 runs of the same numbers, one may be so many times as far from float64 as the other
SAMPLES = 400
TOKENS = [2, 7, 40, 23]
OUTPUTS = {"output": "logits", "weights": "decoder_attentions", "cross_weights": "cross_attentions"}
MARKED = [pytest.param(name, marks=() if name == "trocr" else pytest.mark.family) for name in PAIRS]


def source_of(model):
    """The name of the encoder's input in a request, and random values of it."""
    name = model.get_encoder().main_input_name
    if name == "input_values":
        return name, np.random.default_rng(0).standard_normal((1, SAMPLES), np.float32)
    return name, encoder_input(model, "")


def test_both_stacks_are_described_by_their_own_configs(once):
    folder = once("trocr", lambda folder: save("trocr", folder))
    block, _ = block_of(load(folder), "mine")
    assert block.inputs["pixel_values"].shape == ("batch", 3, 16, 16)
    assert block.inputs["decoder_input_ids"].maximum == 59
    assert {name: block.outputs[name].shape for name in (*OUTPUTS, "encoder_weights")} == {
        "output": ("batch", "m", 60), "weights": (3, "batch", 2, "m", "m"), "cross_weights": (3, "batch", 2, "m", 17),
        "encoder_weights": (2, "batch", 4, 17, 17),
    }  # fmt: skip


@pytest.mark.extended
@pytest.mark.parametrize("name", MARKED)
def test_answers_and_tokens_are_those_of_transformers(name, tmp_path):
    save(name, tmp_path / "saved")
    flags = ["--input", f"input_values={SAMPLES}"] if name == "speech" else []
    command = ["hf", str(tmp_path / "saved"), "--repository", str(tmp_path / "models"), "--name", "mine", *flags]
    assert main(command) == 0
    model = getattr(transformers, PAIRS[name][0]).from_pretrained(tmp_path / "saved", attn_implementation="eager")
    main_input, values = source_of(model.eval())
    with running(tmp_path / "models") as client:
        check(client, model, {main_input: values, "decoder_input_ids": np.array([TOKENS])})
        model.float()
        if name == "speech":  # generate gives its encoder a mask of another shape
            first = client.post("/v1/generate/mine", json={main_input: values[0].tolist(), "max_new_tokens": 1})
            with torch.no_grad():
                (logits,) = model(torch.from_numpy(values), decoder_input_ids=torch.tensor([[2]])).logits[0]
            assert [token["id"] for token in first.json()["generated"]] == [int(logits.argmax())]
        else:
            check_generation(client, model, name)


def check(client, model, inputs):
    """Compare the answers to ``inputs`` with those of transformers, of all layers and of each stage of the encoder."""
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    with torch.no_grad():
        plain, exact = (
            model.to(dtype)(
                **{name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()},
                output_attentions=True,
            )
            for dtype in (torch.float32, torch.float64)
        )
    stages = [name for name in outputs_of(client) if name.startswith("encoder_weights")]
    body = {name: array.tolist() for name, array in inputs.items()} | {"outputs": [*OUTPUTS, *stages]}
    answer = client.post("/v1/attention/mine", json=body)
    assert answer.status_code == 200, answer.text
    for ours, theirs in OUTPUTS.items():
        single, double = (torch.stack([*one[theirs]]) if ours != "output" else one[theirs] for one in (plain, exact))
        error = SLACK * float((single - double).abs().max())
        np.testing.assert_allclose(answer.json()[ours], double, rtol=0, atol=error, err_msg=ours)
    layers = [layer for name in sorted(stages) for layer in answer.json()[name]]
    for layer, single, double in zip(layers, plain.encoder_attentions, exact.encoder_attentions, strict=True):
        error = SLACK * float((single - double).abs().max())
        np.testing.assert_allclose(np.reshape(layer, double.shape), double, rtol=0, atol=error)


def outputs_of(client):
    return [output["name"] for output in client.get("/v1/attention/mine").json()["outputs"]]


@pytest.mark.extended
def test_a_picture_as_a_file_is_written_down(tmp_path):
    """As TrOCR reads a line: the same tokens as of the numbers that transformers' image processor makes."""
    save("trocr", tmp_path / "saved")
    processor = transformers.ViTImageProcessorPil(size={"height": 16, "width": 16})
    processor.save_pretrained(tmp_path / "saved")
    assert main(["hf", str(tmp_path / "saved"), "--repository", str(tmp_path / "models"), "--name", "mine"]) == 0
    content = text_of(files()["JPEG"])
    options = {"max_new_tokens": 6, "ignore_eos": True, "outputs": ["cross_weights"], "next_tokens": 2}
    with running(tmp_path / "models") as client:
        written = client.post("/v1/generate/mine", json={"images": content, **options})
        whole = client.post(
            "/v1/attention/mine",
            json={"images": content, "decoder_input_ids": [2], "outputs": ["cross_weights"]},
        )
        refused = client.post("/v1/generate/mine", json={"text": "a line", **options})
        sites = client.get("/v1/attention/mine").json()["interventions"]
        changed = [
            client.post(
                f"/v1/{path}/mine",
                json={"images": content, **fields, "interventions": [{"at": site, "scale": 0.5}]},
            )
            for site in sites
            for path, fields in (("attention", {"decoder_input_ids": [2]}), ("generate", {"max_new_tokens": 2}))
        ]
    assert written.status_code == whole.status_code == 200, (written.text, whole.text)
    assert "weights" not in sites  # whose batch and heads are one axis
    assert {answer.status_code for answer in changed} == {200}
    assert (refused.status_code, refused.json()["field"]) == (422, "text")
    tokens = written.json()["generated"]
    assert [token["next_tokens"][0]["id"] for token in tokens] == [token["id"] for token in tokens]
    assert len(tokens) == 6
    np.testing.assert_allclose(tokens[0]["cross_weights"], whole.json()["cross_weights"], rtol=0, atol=1e-6)
