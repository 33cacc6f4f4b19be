"""The descriptions and formulas of blocks are correct: names, biases, heads, inputs, sizes."""

import re

import pytest

from models import additive, cross_decoder, encoder, multi_head
from models.additive import AdditiveConfig
from models.catalogue import BLOCKS
from models.multi_head import MultiHeadConfig
from models.transformer import TransformerConfig

STACK = {"d_model": 8, "num_heads": 2, "num_layers": 1, "d_ff": 8}
VARIANTS = [
    multi_head.block(MultiHeadConfig(16, heads, num_kv_heads=kv_heads, bias=bias, out_proj=out_proj, inputs=inputs))
    for heads, kv_heads in ((1, 1), (4, 4), (4, 2), (4, 1))
    for bias in (True, False)
    for out_proj in (True, False)
    for inputs in ("query, key, value", "x", "x, memory")
]
VARIANTS += [additive.block(AdditiveConfig(3, 4, 5, 6, bias=bias)) for bias in (True, False)]
VARIANTS += [
    make(TransformerConfig(**STACK, bias=bias, norm=norm))
    for make in (encoder.encoder, encoder.decoder, cross_decoder.cross_decoder)
    for bias in (True, False)
    for norm in ("pre", "post")
]
EVERY = [*BLOCKS.values(), *VARIANTS]
every = pytest.mark.parametrize("block", EVERY, ids=[f"{block.name}-{i}" for i, block in enumerate(EVERY)])


def texts(block):
    tensors = {**block.inputs, **block.outputs}
    return {"description": block.description} | {name: spec.description for name, spec in tensors.items()}


def names(block):
    """All names that a description may use: tensors, parameters, dimensions, the configuration."""
    dims = [dim for spec in (*block.inputs.values(), *block.outputs.values()) for dim in spec.shape]
    symbols = {symbol for dim in dims for symbol in re.findall(r"[a-z_]+", str(dim))}
    return {*block.inputs, *block.outputs, *symbols, *block.config}


def biases(block):
    """The biases of linear layers; formulas do not have those of layer norms."""
    return [name for name in block.build().state_dict() if name.endswith("bias") and "norm" not in name]


@every
def test_every_name_is_one_of_the_block(block):
    for where, text in texts(block).items():
        unknown = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", text)) - names(block)
        assert not unknown, f"{where}: {text}"
        for word in ("memory", "bandwidth", "softcap", "scale"):
            used = re.search(rf"\b{word}\b(?! are linear)(?!, so)", text)
            assert not used or word in block.inputs, f"{where}: {text}"
        if re.search(r"\bpast\b", text):
            assert "past_key" in block.inputs, f"{where}: {text}"
        if re.search(r"before key|past_key and key", text):
            assert "key" in block.inputs, f"{where}: {text}"
            assert block.inputs["key"].shape[-1] == block.outputs["present_key"].shape[-1], "it is not projected"


@every
def test_formula_and_description_have_the_biases_of_the_block(block):
    assert bool(re.search(r"\bb(?:_\d|\^|\b)", block.formula)) == bool(biases(block)), block.formula
    claim = re.search(r"no biases|without (?:a )?bias|with (?:a )?bias|has a bias", block.description)
    if claim:
        assert bool(biases(block)) == (not claim[0].startswith(("no", "without"))), block.description


@every
def test_the_formula_has_the_inputs_and_matrices_of_the_block(block):
    state = block.build().state_dict()
    if "q_proj.weight" in state and block.name != "luong_general" and "v.weight" not in state:
        assert ("W^O" in block.formula) == ("out_proj.weight" in state)
        letters = {letter for letter in "QKVXM" if re.search(rf"(?<![\\^a-zA-Z]){letter}W", block.formula)}
        inputs = {"query": "Q", "key": "K", "value": "V", "x": "X", "memory": "M"}
        assert letters == {letter for name, letter in inputs.items() if name in block.inputs}
        heads, kv_heads = block.config["num_heads"], block.config["num_kv_heads"]
        assert ("W^Q_i" in block.formula) == (heads > 1)
        assert ("W^K_i" in block.formula) == (heads > 1 and kv_heads == heads)
        assert ("g(i)" in block.formula) == (1 < kv_heads < heads)
    assert ("s\\," in block.formula) == (block.inputs.get("scale") is not None and block.inputs["scale"].default == 1)


@every
def test_numbers_are_those_of_the_configuration(block):
    for count in map(int, re.findall(r"(\d+) (?:query )?heads?\b", block.description)):
        assert count in {block.config["num_heads"], block.config.get("num_kv_heads")}, block.description
    for count, name in re.findall(r"(\d+) (layers|dimensions)", block.description):
        assert int(count) == block.config[{"layers": "num_layers", "dimensions": "d_a"}[name]]
    for name, size in re.findall(r"\b(d_[a-z]+) = (\d+)", block.description):
        assert block.config[name] == int(size), block.description
    if "widths" in block.description and "num_heads" in block.config:
        widths = [*map(int, re.findall(r"\d+", block.description))][:3]
        assert widths == [block.config[name] for name in ("d_model", "kdim", "vdim")]


def test_groups_of_key_heads():
    """Head i uses the keys of head g(i) of the formula: adjacent heads share them."""
    heads, kv_heads = 8, 2
    shared = [-(-kv_heads * i // heads) for i in range(1, heads + 1)]
    assert shared == [1, 1, 1, 1, 2, 2, 2, 2]
    assert rf"\lceil {kv_heads}i/h \rceil" in BLOCKS["grouped_query"].formula
    assert "8 query heads share 2 heads" in BLOCKS["grouped_query"].description
