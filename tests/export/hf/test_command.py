"""``heed export hf``: what it writes, what it says, and what it refuses."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from export.__main__ import main
from export.artifact import ExportError
from export.hf import command as hf
from export.hf.description import block_of
from export.hf.pretrained import load
from export.verification.sessions import session
from export.weights.memory import COPIES, FLOAT32, GIB, MANY_BYTES, machine_bytes
from tests.support.families import FAMILIES, IMAGE, TEXT, Family, build, save

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
TINY = Family("BertForSequenceClassification", {**TEXT, "num_hidden_layers": 1, "hidden_size": 8})
BASE = Family("BertModel", TINY.config)
GRAPHS = {
    "model.onnx", "weights.onnx", "output.onnx", "fused.onnx", "masked.onnx", "interventions.onnx",
    "interventions_output.onnx", "head.onnx", "layer_0.onnx",
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny(once):
    """The directory of a small BERT with a classifier."""
    return once("tiny bert", lambda folder: save(TINY, folder))


def run(*arguments):
    return main(["hf", *map(str, arguments)])


def changed(source, folder, **settings):
    """A copy of the directory ``source`` with other settings in its config."""
    folder.mkdir(exist_ok=True)
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    return folder


def write_empty_weights(file, dtype, item, count):
    """A sparse file of so many numbers, which are all 0."""
    header = json.dumps({"weight": {"dtype": dtype, "shape": [count], "data_offsets": [0, item * count]}}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(file, file.stat().st_size + item * count)


@pytest.mark.parametrize(("dtype", "item"), [("F32", 4), ("BF16", 2)])
def test_a_model_that_needs_more_memory_than_the_machine_has_is_refused_at_once(tiny, tmp_path, capsys, dtype, item):
    folder = changed(tiny, tmp_path / "large")
    (folder / "model.safetensors").unlink()
    count = machine_bytes() // (2 * FLOAT32 * COPIES) + 1  # in each of two shards
    for shard in ("00001-of-00002", "00002-of-00002"):
        write_empty_weights(folder / f"model-{shard}.safetensors", dtype, item, count)
    assert run(folder, "--repository", tmp_path / "models") == 2
    available = round(machine_bytes() / GIB)
    expected = rf"not enough memory: {folder} needs about \d+ GiB of {available} GiB that this machine has\n"
    assert re.search(expected, capsys.readouterr().err)
    assert not (tmp_path / "models").exists()


def test_what_a_large_model_needs_is_said_before_it_is_read(tiny, tmp_path):
    folder = changed(tiny, tmp_path / "large")
    write_empty_weights(folder / "model.safetensors", "F32", 4, MANY_BYTES // (FLOAT32 * COPIES) + 1)
    assert re.fullmatch(r"needs about 4 GiB of \d+ GiB that this machine has", hf.memory_of(folder, is_part=False))
    assert hf.memory_of(folder, is_part=True) == hf.memory_of(tiny, is_part=False) == ""


def test_a_version_has_its_graphs_and_the_files_of_the_tokenizer(texts_repository):
    folder = texts_repository / "bert" / "1"
    assert {file.name for file in folder.iterdir()} == GRAPHS | {"tokenizer.json", "tokenizer_config.json"}
    spec = json.loads(session(folder / "model.onnx").get_modelmeta().custom_metadata_map["heed"])
    assert spec["title"] == "BertModel (bert)"
    assert spec["formula"] == r"\mathrm{BertModel}(\mathrm{input\_ids})"
    assert spec["config"]["architectures"] == ["BertForSequenceClassification"]
    version = transformers.__version__
    expected = f"on the CPU, against transformers {version} with eager attention in float64, n up to 16"
    assert spec["verified"] == expected
    assert spec["limits"] == {"n": 16}
    assert "sha256:" in spec["weights"]


def test_the_flags_reach_the_export(tiny, tmp_path, monkeypatch, capsys):
    """Without a name it has the directory's; what is not exported leaves a message and no folder."""
    calls = []

    def export_model(pretrained, name, repository, version, force, report, quantize):
        companions = [path.name for path in pretrained.companions]
        calls.append((pretrained.kind, companions, name, repository, version, force, quantize))
        raise ExportError("a check failed")

    monkeypatch.setattr("export.hf.artifact.export_model", export_model)
    (directory := changed(tiny, tmp_path / "tiny bert") / "preprocessor_config.json").write_text("{}")
    assert run(directory.parent, "--repository", tmp_path / "models") == 1
    flags = ["--name", "mine", "--head", "none", "--version", 2, "--force", "--quantize", "int8"]
    assert run(directory.parent, *flags, "--repository", tmp_path) == 1
    assert calls == [
        (TINY.model, ["preprocessor_config.json"], "tiny_bert", tmp_path / "models", None, False, False),
        (BASE.model, ["preprocessor_config.json"], "mine", tmp_path, 2, True, True),
    ]
    assert "a check failed\nNothing was written for mine.\n" in capsys.readouterr().err


@pytest.mark.extended
def test_a_model_that_does_not_generate_says_that_it_is_not_quantized(tiny, tmp_path):
    """The libraries of the export log nothing to the terminal. One that quantizes configures logging when imported."""
    command = [sys.executable, "-m", "export", "hf", str(tiny), "--name", "mine", "--quantize", "int8"]
    done = subprocess.run([*command, "--repository", str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("mine: --quantize has no effect: ")
    assert all(line.startswith("heed export hf: mine: ") for line in done.stderr.splitlines()), done.stderr


def test_an_existing_version_stays(tiny, tmp_path, capsys):
    (tmp_path / "mine" / "2").mkdir(parents=True)
    assert run(tiny, "--name", "mine", "--repository", tmp_path, "--version", 2) == 1
    assert "--force replaces it" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "mine").rglob("*")] == ["2"]


@pytest.mark.extended
def test_many_weights_of_a_model_without_its_head_are_one_file(tmp_path, capsys):
    """Checkpoints of masked language models have no pooler. Hidden states, the answer, do not depend on it."""
    save(Family(TINY.model, {**TINY.config, "vocab_size": 130_000}), tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    state = {name: tensor for name, tensor in load_file(file).items() if "pooler" not in name}
    save_file(state, file, {"format": "pt"})
    assert load(tmp_path / "model", "none").random == ("pooler.dense.bias", "pooler.dense.weight")
    assert run(tmp_path / "model", "--head", "none", "--name", "mine", "--repository", tmp_path) == 0
    ignored = "ignored, BertModel does not have them: classifier.bias, classifier.weight"
    assert ignored in capsys.readouterr().err
    folder = tmp_path / "mine" / "1"
    files = {file.name: file.stat().st_size for file in folder.iterdir()}
    assert files.keys() == GRAPHS | {"weights.bin"}
    assert files["weights.bin"] > 4 * 8 * 130_000 > 10 * max(files[graph] for graph in GRAPHS)
    ids = np.array([[5, 6, 7]])
    output = session(folder / "model.onnx").run(["output"], {"input_ids": ids})[0]
    with torch.no_grad():
        expected = transformers.BertModel.from_pretrained(tmp_path / "model")(torch.from_numpy(ids)).last_hidden_state
    np.testing.assert_allclose(output, expected, atol=1e-4)


def test_shards_and_half_precision_are_read_into_float32(tmp_path):
    model = build(TINY).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    loaded = load(tmp_path).model
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    state = loaded.state_dict()
    assert all(torch.equal(tensor.to(state[name].dtype), state[name]) for name, tensor in model.state_dict().items())


def with_code(tiny, folder):
    """Code that would write a file, if it ran."""
    own = changed(tiny, folder / "x", model_type="own", auto_map={"AutoConfig": "own.Config"})
    (own / "own.py").write_text(f"open({str(folder / 'run')!r}, 'w')")
    return own


def damaged(tiny, folder):
    file = changed(tiny, folder / "x") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    return file.parent


def configured(_, folder):
    build(TINY).config.save_pretrained(folder)
    return folder


def headless(_, folder):
    save(BASE, folder / "base")
    return changed(folder / "base", folder / "x", architectures=[TINY.model])


def not_a_number(tiny, folder):
    file = changed(tiny, folder / "x") / "model.safetensors"
    state = load_file(file)
    next(tensor for name, tensor in state.items() if name.endswith("query.weight"))[0] = torch.nan
    save_file(state, file, {"format": "pt"})
    return file.parent


REFUSED = {  # a family, changes of the config of ``tiny``, or a function that makes the directory; and the reason
    "no directory": (lambda _, folder: folder / "absent", "no such directory"),
    "a file of tensors": (lambda tiny, folder: shutil.copy(tiny / "model.safetensors", folder), "is a file; heed exp"),
    "a file of the model": (lambda tiny, _: tiny / "model.safetensors", "is a file; give its directory, "),
    "a name of the Hub": (
        lambda *_: Path("acme/small"),
        "acme/small; to download it from the Hugging Face Hub: hf download acme/small --local-dir small",
    ),
    "not a number": (not_a_number, "weight contains NaN"),
    "no config": (lambda _, folder: folder, "has no config.json"),
    "no weights": (configured, "has no weights; expected model.safetensors or"),
    "an unknown type": ({"model_type": "unknown"}, "cannot load it: .*unknown"),
    "code": (with_code, "it needs the code in its directory, and export runs none"),
    "a damaged file": (damaged, "transformers cannot load it"),
    "an unknown class": ({"architectures": ["BertForNothing"]}, "names BertForNothing, which transformers"),
    "quantized": ({"quantization_config": {"quant_method": "gptq"}}, "its weights are quantized"),
    "no head": (headless, "lacks classifier.bias, classifier.weight, which BertForSeq.* needs; --head none"),
    "several answers": (
        Family("BertForPreTraining", TINY.config),
        "its call returns prediction_logits, seq_relationship_logits.*--head none",
    ),
    "several answers of a model without a head": (
        Family(
            "MgpstrForSceneTextRecognition",
            {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": [8, 8], "mlp_ratio": 1},
        ),
        "its call returns logits, hidden_states, attentions, and neither logits, .* nor a last hidden state\n",
    ),
    "several models": (
        Family("LlavaNextForConditionalGeneration", {"text_config": TEXT, "vision_config": IMAGE}),
        "has several models in one; --part exports one: vision_tower, language_model",
    ),
    "an image token beyond the vocabulary": (
        Family("LlavaForConditionalGeneration", {"text_config": TEXT, "vision_config": IMAGE}),
        "its image_token_id 32000 is beyond its vocabulary of 60 tokens",
    ),
    "no size of images": (
        Family("ResNetModel", {"embedding_size": 4, "hidden_sizes": [4, 4]}),
        "config.json has no image_size, from which the shape of pixel_values follows",
    ),
}


@pytest.mark.parametrize(("directory", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refusal_says_why_and_writes_nothing(directory, reason, tiny, tmp_path, capsys):
    if isinstance(directory, Family):
        save(directory, folder := tmp_path / "x")
    else:
        folder = (
            changed(tiny, tmp_path / "x", **directory) if isinstance(directory, dict) else directory(tiny, tmp_path)
        )
    assert run(folder, "--name", "mine", "--repository", tmp_path / "models") == 2
    error = capsys.readouterr().err
    assert re.search(reason, error), error
    assert error.endswith("Nothing was written for mine.\n")
    assert not {"models", "run"} & {path.name for path in tmp_path.iterdir()}


def test_a_lack_of_memory_is_said(tiny, tmp_path, monkeypatch, capsys):
    def export_model(*_arguments):
        raise MemoryError("Unable to allocate 1.31 GiB for an array")

    monkeypatch.setattr("export.hf.artifact.export_model", export_model)
    assert run(tiny, "--name", "mine", "--repository", tmp_path) == 2
    expected = "not enough memory: Unable to allocate 1.31 GiB for an array\nNothing was written for mine.\n"
    assert capsys.readouterr().err.endswith(expected)


def test_a_default_that_changes_the_answer_is_no_input(tmp_path):
    """GPT-2 takes segments, too, but gives none where they are not given: they are not an input of the graph."""
    save(FAMILIES["gpt 2"], tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"type_vocab_size": 2}))
    block, _ = block_of(load(tmp_path / "model"), "mine")
    assert block.inputs.keys() == {"input_ids", "attention_mask", "head_mask"}


def test_a_roberta_has_fewer_positions_than_its_table(tmp_path):
    """They begin behind the padding token's, 1."""
    save(FAMILIES["roberta"], tmp_path)
    block, _ = block_of(load(tmp_path), "mine")
    assert block.limits == {"n": 48 - 2}


def test_without_transformers_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "export.hf.artifact", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert hf.main(["."]) == 1
    error = capsys.readouterr().err
    assert error == "heed export hf: transformers is not installed; pip install 'heed-attention[hf]'\n"
