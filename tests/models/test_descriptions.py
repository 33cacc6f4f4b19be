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


@every
def test_every_name_is_one_of_the_block(block):
    """Tensors, parameters, dimensions and settings."""
    tensors = {**block.inputs, **block.outputs}
    symbols = {name for spec in tensors.values() for dim in spec.shape for name in re.findall(r"[a-z_]+", str(dim))}
    for text in (block.description, *(spec.description for spec in tensors.values())):
        assert set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", text)) <= tensors.keys() | symbols | block.config.keys(), text
        for word in ("memory", "bandwidth", "softcap", "scale"):
            assert not re.search(rf"\b{word}\b(?! are linear)(?!, so)", text) or word in block.inputs, text
        assert not re.search(r"\bpast\b", text) or "past_key" in block.inputs, text
        if re.search(r"before key|past_key and key", text):
            assert "key" in block.inputs, text
            assert block.inputs["key"].shape[-1] == block.outputs["present_key"].shape[-1], "it is not projected"


@every
def test_the_formula_has_the_biases_inputs_and_matrices_of_the_block(block):
    state = block.build().state_dict()
    has_biases = any(name.endswith("bias") and "norm" not in name for name in state)  # of linear layers, not of norms
    assert bool(re.search(r"\bb(?:_\d|\^|\b)", block.formula)) == has_biases, block.formula
    claim = re.search(r"no biases|without (?:a )?bias|with (?:a )?bias|has a bias", block.description)
    assert not claim or has_biases == (not claim[0].startswith(("no", "without"))), block.description
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
