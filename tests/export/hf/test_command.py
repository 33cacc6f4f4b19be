"""``heed export hf``: what it writes, what it says, and what it refuses."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from export.__main__ import main
from export.hf.description import block_of
from export.hf.pretrained import ModelRefused, load
from export.verification import session
from tests.support.documents import ROOT
from tests.support.families import FAMILIES, IMAGE, T5, TEXT, Family, build, save
from tests.support.texts import save_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
TINY = Family("BertForSequenceClassification", {**TEXT, "num_hidden_layers": 1, "hidden_size": 8})
BASE = Family("BertModel", TINY.config)
GRAPHS = {"model.onnx", "weights.onnx", "output.onnx", "fused.onnx", "masked.onnx"}


@pytest.fixture(scope="module")
def tiny(once):
    """The directory of a small BERT with a classifier and the files of a tokenizer."""

    def fill(folder):
        save(TINY, folder)
        save_tokenizer(folder)
        (folder / "preprocessor_config.json").write_text("{}")

    return once("tiny bert", fill)


@pytest.fixture(scope="module")
def exported(once, tiny):
    """A repository with ``tiny``, whose name there is the directory's."""
    return once("tiny bert exported", lambda folder: run(tiny, "--repository", folder))


@pytest.fixture(scope="module")
def headless(once):
    """A folder with the directory ``model``, a BERT with a classifier and no pooler, and ``models`` without its head.

    Checkpoints of masked language models have no pooler. Hidden states do not depend on it.
    """

    def fill(folder):
        save(TINY, folder / "model")
        file = folder / "model" / "model.safetensors"
        state = {name: tensor for name, tensor in load_file(file).items() if "pooler" not in name}
        save_file(state, file, {"format": "pt"})
        with contextlib.redirect_stderr(io.StringIO()) as written, pytest.MonkeyPatch.context() as patched:
            patched.setattr("export.hf.artifact.fast_paths", lambda *_: {})
            run(folder / "model", "--head", "none", "--name", "mine", "--repository", folder / "models")
        (folder / "stderr").write_text(written.getvalue())

    return once("headless bert exported", fill)


def run(*arguments):
    return main(["hf", *map(str, arguments)])


def changed(source, folder, **settings):
    """A copy of the directory ``source`` with other settings in its config."""
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    return folder


def test_a_version_has_its_graphs_and_the_files_of_the_tokenizer(exported):
    names = {file.name for file in (exported / "tiny_bert" / "1").iterdir()}
    assert names == GRAPHS | {"tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"}


def test_the_metadata_says_what_was_verified_against_what(exported):
    card = json.loads(session(exported / "tiny_bert" / "1" / "model.onnx").get_modelmeta().custom_metadata_map["heed"])
    assert card["title"] == "BertForSequenceClassification (bert)"
    assert card["config"]["architectures"] == ["BertForSequenceClassification"]
    version = transformers.__version__
    expected = f"on the CPU, against transformers {version} with eager attention in float64, n up to 48"
    assert card["verified"] == expected
    assert card["limits"] == {"n": 48}
    assert "sha256:" in card["weights"]


def test_without_a_name_it_has_the_directorys(exported):
    assert [path.name for path in exported.iterdir()] == ["tiny_bert"]


@pytest.fixture
def without_fast_paths(monkeypatch):
    """For tests of the folders and the canonical graph."""
    monkeypatch.setattr("export.hf.artifact.fast_paths", lambda *_: {})


def test_an_existing_name_gets_the_next_version(tiny, exported, without_fast_paths, tmp_path, capsys):
    shutil.copytree(exported, tmp_path, dirs_exist_ok=True)
    model = tmp_path / "tiny_bert"
    assert run(tiny, "--repository", tmp_path) == 0
    assert sorted(path.name for path in model.iterdir()) == ["1", "2"]
    before = (model / "2" / "model.onnx").stat().st_ino
    assert run(tiny, "--repository", tmp_path, "--version", 2) == 1
    assert "--force replaces it" in capsys.readouterr().err
    assert (model / "2" / "model.onnx").stat().st_ino == before
    assert run(tiny, "--repository", tmp_path, "--version", 2, "--force") == 0
    assert (model / "2" / "model.onnx").stat().st_ino != before


def test_without_its_head_a_model_answers_hidden_states(headless):
    ignored = "ignored, as BertModel has no such tensors: classifier.bias, classifier.weight"
    assert ignored in (headless / "stderr").read_text()
    ids = np.array([[5, 6, 7]])
    output = session(headless / "models" / "mine" / "1" / "model.onnx").run(["output"], {"input_ids": ids})[0]
    model = transformers.BertModel.from_pretrained(headless / "model")
    with torch.no_grad():
        expected = model(input_ids=torch.from_numpy(ids)).last_hidden_state
    np.testing.assert_allclose(output, expected, atol=1e-4)


def test_a_missing_pooler_does_not_matter(headless):
    assert load(headless / "model", "none").random == ("pooler.dense.bias", "pooler.dense.weight")
    assert (headless / "models" / "mine" / "1" / "model.onnx").exists()


def test_many_weights_are_one_file(tmp_path):
    save(Family("BertModel", {**TINY.config, "vocab_size": 130_000}), tmp_path / "model")
    assert run(tmp_path / "model", "--name", "mine", "--repository", tmp_path / "models") == 0
    files = {file.name: file.stat().st_size for file in (tmp_path / "models" / "mine" / "1").iterdir()}
    assert files.keys() == GRAPHS | {"weights.bin"}
    assert files["weights.bin"] > 4 * 8 * 130_000 > 10 * max(files[graph] for graph in GRAPHS)


UNKNOWN_TO_KERNELS = {
    "bias": Family("T5EncoderModel", {**T5, "num_layers": 1, "d_model": 8, "d_ff": 8, "num_heads": 2}),
    **({"two stacks": FAMILIES["t5"], "sink": FAMILIES["gpt oss"]} if os.environ.get("HEED_TEST_FAMILIES") else {}),
}


@pytest.mark.parametrize("family", UNKNOWN_TO_KERNELS.values(), ids=UNKNOWN_TO_KERNELS.keys())
def test_a_model_that_no_kernel_computes_has_the_graph_of_the_formula(family, tmp_path):
    """T5 adds a bias to the scores, GPT-OSS a sink to the keys."""
    save(family, tmp_path / "model")
    assert run(tmp_path / "model", "--name", "mine", "--repository", tmp_path / "models") == 0
    names = {file.name for file in (tmp_path / "models" / "mine" / "1").iterdir()}
    assert names == {"model.onnx", "weights.onnx", "output.onnx"}


def test_shards_are_read(tmp_path):
    model = build(TINY)
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    loaded = load(tmp_path).model.state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in model.state_dict().items())


def test_half_precision_is_converted_to_float32(tmp_path):
    build(TINY).to(torch.bfloat16).save_pretrained(tmp_path)
    assert {parameter.dtype for parameter in load(tmp_path).model.parameters()} == {torch.float32}


REFUSED = {
    "no directory": (lambda _, folder: folder / "absent", "no such directory"),
    "no config": (lambda _, folder: folder, "has no config.json"),
    "no weights": (lambda _, folder: configured(folder), "has no weights; expected model.safetensors or"),
    "an unknown type": (
        lambda tiny, folder: changed(tiny, folder / "x", model_type="unknown"),
        "cannot load it: .*unknown",
    ),
    "code": (
        lambda tiny, folder: changed(tiny, folder / "x", model_type="own", auto_map={"AutoConfig": "own.Config"}),
        "it needs the code in its directory, which is never run",
    ),
    "an unknown class": (
        lambda tiny, folder: changed(tiny, folder / "x", architectures=["BertForNothing"]),
        "architectures names BertForNothing, which transformers",
    ),
    "quantized": (
        lambda tiny, folder: changed(tiny, folder / "x", quantization_config={"quant_method": "gptq"}),
        "its weights are quantized",
    ),
    "a head without numbers": (
        lambda _, folder: changed(saved(BASE, folder / "base"), folder / "x", architectures=[TINY.model]),
        "has no numbers for classifier.bias, classifier.weight, which BertForSequenceClassification needs; --head none",
    ),
    "several answers": (
        lambda _, folder: saved(Family("BertForPreTraining", TINY.config), folder / "x"),
        "its call returns prediction_logits, seq_relationship_logits.*--head none",
    ),
    "several models": (lambda _, folder: saved(CLIP, folder / "x"), r"has several models in one \(text_config, vis"),
    "no size of images": (
        lambda _, folder: saved(Family("ResNetModel", {"embedding_size": 4, "hidden_sizes": [4, 4]}), folder / "x"),
        "config.json has no image_size, from which the shape of pixel_values follows",
    ),
}
CLIP = Family("CLIPModel", {"text_config": TEXT, "vision_config": IMAGE})


def saved(family, folder):
    save(family, folder)
    return folder


def configured(folder):
    build(TINY).config.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("directory", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refusal_says_why_and_writes_nothing(directory, reason, tiny, tmp_path, capsys):
    folder = directory(tiny, tmp_path)
    assert run(folder, "--name", "mine", "--repository", tmp_path / "models") == 2
    error = capsys.readouterr().err
    assert re.search(reason, error), error
    assert error.endswith("Nothing was written for mine.\n")
    assert not (tmp_path / "models").exists()


def test_code_in_the_directory_is_not_run(tiny, tmp_path):
    own = changed(tiny, tmp_path / "own", model_type="own", auto_map={"AutoConfig": "own.Config"})
    (own / "own.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    with pytest.raises(ModelRefused, match="never run"):
        load(own)
    assert not (tmp_path / "run").exists()


def test_a_damaged_file_is_refused(tiny, tmp_path):
    damaged = changed(tiny, tmp_path / "damaged")
    file = damaged / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelRefused, match="transformers cannot load it"):
        load(damaged)


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


def test_without_transformers_it_says_what_to_install():
    program = (
        "import sys; sys.modules['transformers'] = None; from export.__main__ import main; sys.exit(main(['hf', '.']))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == ("heed export hf: transformers is not installed; pip install 'heed-attention[hf]'\n")
