"""Blocks of the user's own sizes with demonstration weights, and errors about wrong settings."""

import json

import numpy as np
import pytest
import torch

from export.__main__ import main
from export.artifact import ExportError
from export.verification.sessions import session
from export.weights.demonstration import with_seed
from export.weights.family import FAMILIES
from models.catalogue import BLOCKS

STACK = {"d_model": 8, "num_heads": 2, "num_layers": 2, "d_ff": 12}
SMALL = {
    "projected": {"d_model": 6, "kdim": 5, "vdim": 7, "d_k": 4, "d_v": 3},
    "self_attention": {"d_model": 6},
    "cross_attention": {"d_model": 6, "kdim": 5, "vdim": 5},
    "multi_head": {"d_model": 6, "num_heads": 3},
    "multi_head_self_attention": {"d_model": 6, "num_heads": 3},
    "grouped_query": {"d_model": 8, "num_heads": 4, "num_kv_heads": 2},
    "multi_query": {"d_model": 6, "num_heads": 3},
    "additive": {"d_q": 3, "d_k": 4, "d_a": 5, "d_v": 6},
    "luong_general": {"d_q": 3, "d_k": 4, "d_v": 5},
    "encoder": STACK,
    "cross_decoder": STACK,
    "decoder": STACK | {"vocab_size": 11, "max_positions": 13},
}
PAIR = {"d_model": 6, "num_heads": 3}
HUGE = 10**15


def run(kind, settings, *arguments, name="small"):
    """The exit status of an export of ``kind`` with ``settings``."""
    pairs = [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
    return main([kind, "--name", name, *pairs, *map(str, arguments)])


def state(kind, settings, seed):
    """The weights of a block by name."""
    texts = {key: str(value) for key, value in settings.items()}
    return with_seed(kind, "small", texts, seed).block.build().state_dict()


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_block_of_other_sizes(tmp_path, monkeypatch, few_examples, capsys):
    monkeypatch.setattr("export.__main__.MANY_BYTES", 0)
    assert run("luong_general", SMALL["luong_general"], "--seed", 1, "--repository", tmp_path) == 0
    captured = capsys.readouterr()
    assert "small needs about 0 GiB of memory to be exported" in captured.err
    assert "small: random demonstration weights, seed 1, verified against the float64" in captured.out
    served = session(tmp_path / "small" / "1" / "model.onnx")
    spec = json.loads(served.get_modelmeta().custom_metadata_map["heed"])
    assert (spec["block"], spec["weights"]) == ("small", "random demonstration weights, seed 1")
    assert {name: spec["config"][name] for name in SMALL["luong_general"]} == SMALL["luong_general"]
    weights = state("luong_general", SMALL["luong_general"], 1)
    eye = {"query": np.eye(3, dtype=np.float32)[None], "key": np.eye(4, dtype=np.float32)[None]}
    (scores,) = served.run(["scores"], eye | {"value": np.zeros((1, 4, 5), np.float32)})
    np.testing.assert_array_equal(scores[0, 0], weights["q_proj.weight"].T)


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_has_sizes(kind):
    """The reference of each is that of its configuration, and conventions are those of the built-in block."""
    block = with_seed(kind, "small", {key: str(value) for key, value in SMALL[kind].items()}, 3).block
    assert {key: block.config[key] for key in SMALL[kind]} == SMALL[kind]
    conventions = {key: value for key, value in BLOCKS[kind].config.items() if isinstance(value, bool | str)}
    if kind == "encoder":
        conventions["embedding_norm"] = False  # there are no embeddings without a vocabulary
    assert {key: block.config[key] for key in conventions} == conventions
    assert block.build().state_dict()


def test_weights_are_drawn_from_the_seed():
    first = state("multi_head", PAIR, 1)
    assert equal(first, state("multi_head", PAIR, 1))
    assert not equal(first, state("multi_head", PAIR, 2))
    assert equal(state("multi_head", {"d_model": 64, "num_heads": 8}, 0), BLOCKS["multi_head"].build().state_dict())


WRONG = {
    "heads that do not divide": ("multi_head", PAIR | {"num_heads": 4}, "d_model 6 is not a multiple of num_heads 4"),
    "no heads": ("multi_head", PAIR | {"num_heads": 0}, "num_heads must be at least 1, got 0"),
    "negative": ("encoder", STACK | {"vocab_size": -1}, "vocab_size must be at least 0, got -1"),
    "of a checkpoint": ("multi_head", PAIR | {"add_zero_attn": "false"}, "--set add_zero_attn: unknown setting"),
    "no number": ("multi_head", PAIR | {"d_model": "six"}, "d_model should be int, got 'six'"),
    "missing": ("multi_head", {"d_model": 6}, "needs num_heads; say --set num_heads=..."),
    "no groups": ("grouped_query", PAIR, "needs num_kv_heads"),
    "the block's own": ("projected", PAIR, "num_heads is 3 by --set, but 1 by the block projected"),
    "no vocabulary": ("encoder", STACK | {"max_positions": 9}, "max_positions, type_vocab_size and embedding_norm n"),
    "no family": ("cosine", {}, "cosine has no sizes to --set; these blocks have: projected"),
    "no block": ("scaled", {}, "unknown block 'scaled'; there are dot_product, scaled_dot_product"),
    "many weights": ("multi_head", {"d_model": 10**6, "num_heads": 1}, "GiB of memory, and this machine has"),
    "many layers": ("encoder", STACK | {"num_layers": HUGE}, "num_layers=1000000000000000"),
    "wide values": ("luong_general", {"d_q": 1, "d_k": 1, "d_v": HUGE}, "GiB of memory, and this machine has"),
    "no tensor": ("multi_head", {"d_model": 10**30, "num_heads": 1}, "too large for any machine: d_model=1000"),
}


@pytest.mark.parametrize(("kind", "settings", "expected"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_setting_is_an_error_of_one_line(tmp_path, capsys, kind, settings, expected):
    assert run(kind, settings, "--repository", tmp_path / "r") == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_a_setting_given_twice(capsys):
    assert run("multi_head", PAIR, "--set", "d_model=9") == 2
    assert "--set d_model is given as '6' and as '9'" in capsys.readouterr().err


def test_an_export_that_fails(tmp_path, monkeypatch, capsys):
    def fail(block, *_):
        assert (block.name, block.dtype) == ("small", "float16")
        assert block.weights == "random demonstration weights, seed 0"
        raise ExportError("a check failed")

    monkeypatch.setattr("export.__main__.export_block", fail)
    assert run("multi_head", PAIR, "--dtype", "float16", "--repository", tmp_path) == 1
    assert "a check failed\nNothing was written for small." in capsys.readouterr().err


FLAGS = {
    "multi_head --set d_model=6": "need exactly one BLOCK, and --name",
    "--seed 1": "need exactly one BLOCK, and --name",
    "multi_head encoder --name a": "need exactly one BLOCK, and --name",
    "multi_head --name a --map x": "--map and --prefix need --weights",
    "multi_head --name a --prefix x": "--map and --prefix need --weights",
    "multi_head --weights x": "--weights needs exactly one BLOCK, and --name",
    "--weights x": "--weights needs exactly one BLOCK, and --name",
    "multi_head --name a --seed 1 --weights x": "--weights cannot be given with it",
    "multi_head --name a --seed=-1": "expected a whole number from 0 to 2**64 - 1",
    f"multi_head --name a --seed {1 << 64}": "expected a whole number from 0",
    "dot_product --dtype float8": "--dtype: expected float32, float16 or bfloat16, got 'float8'",
}
FLAGS |= {f"multi_head --name={name}": "expected a name of letters" for name in ("../up", "a/b", "", ".hidden", "-x")}
FLAGS |= {
    f"dot_product --version={text}": "expected a whole number of at least 1" for text in ("0", "-1", "one", "1.5")
}


@pytest.mark.parametrize(("flags", "expected"), FLAGS.items())
def test_wrong_flags(flags, expected, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(flags.split())
    assert expected in capsys.readouterr().err
