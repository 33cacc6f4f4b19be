"""The exported files: correct, complete, described in their metadata, the same in each export; or none at all."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch

from export.__main__ import main
from export.artifact import ExportError, export_block
from export.graphs.graph import default_tensor
from export.verification.budget import error_budget, largest_error
from export.verification.sessions import input_names, session
from models import reference
from models.attention import attention
from models.catalogue import BLOCKS
from models.encoder import decoder, encoder
from models.examples import documented, examples
from models.precision import in_precision
from models.scaled_dot_product import ScaledDotProduct
from models.transformer import TransformerConfig


class Unscaled(ScaledDotProduct):
    """Does not scale the scores."""

    def forward(self, query, key, value, scale=None, **options):
        return attention(query, key, value, scale=1.0, **options)


class MaskedToEqual(ScaledDotProduct):
    """Masks by a large negative number instead of -inf, so that a row with all keys masked is not zero."""

    def forward(self, query, key, value, attn_mask=None, **options):
        mask = None if attn_mask is None else torch.clamp(attn_mask, min=-1e4)
        return super().forward(query, key, value, attn_mask=mask, **options)


def broken(name, build):
    """The block with the module of ``build``, and few options, to export two graphs instead of six."""
    block = BLOCKS[name]
    inputs = {key: spec for key, spec in block.inputs.items() if spec.required or key in ("attn_mask", "scale")}
    outputs = {key: block.outputs[key] for key in ("output", "weights", "scores")}
    return dataclasses.replace(block, build=build, inputs=inputs, outputs=outputs)


BROKEN = [
    (Unscaled, "bfloat16", False),  # torch, whose error is the budget, has the same mistake
    (MaskedToEqual, "float32", True),
]


@pytest.mark.parametrize(("build", "dtype", "is_replaced"), BROKEN)
def test_a_broken_block_fails_and_writes_nothing(build, dtype, is_replaced, repository, few_examples, tmp_path):
    """What there is, and would be replaced, stays."""
    if is_replaced:
        shutil.copytree(repository / "scaled_dot_product", tmp_path / "scaled_dot_product")
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    with pytest.raises(ExportError, match="checks against the float64 reference failed") as info:
        export_block(in_precision(broken("scaled_dot_product", build), dtype), tmp_path, force=is_replaced)
    assert ("torch in float32" in str(info.value)) == (dtype == "bfloat16")
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    "name",
    ["luong_general", pytest.param("encoder", marks=pytest.mark.extended)],
)
def test_exporting_twice_gives_the_same_bytes(name, repository, tmp_path):
    again = export_block(BLOCKS[name], tmp_path)
    for file in again.iterdir():
        assert file.read_bytes() == (repository / name / "1" / file.name).read_bytes(), file.name


@pytest.mark.parametrize("name", BLOCKS)
def test_the_artifact_describes_itself(name, repository):
    block = BLOCKS[name]
    run = session((repository / name / "1" / "model.onnx").read_bytes())
    spec = json.loads(run.get_modelmeta().custom_metadata_map["heed"])
    assert (spec["block"], spec["formula"], spec["source"]) == (name, block.formula, block.source)
    assert spec["inputs"].keys() == block.inputs.keys() == input_names(run)
    # A prime makes two dimensions differ whose sizes happen to be equal (export/graphs/graph.py).
    declared = {
        value.name: tuple(dim.rstrip("'") if isinstance(dim, str) else dim for dim in value.shape)
        for value in [*run.get_inputs(), *run.get_overridable_initializers()]
    }
    assert declared == {key: spec.shape for key, spec in block.inputs.items()}
    assert {value.name: tuple(value.shape) for value in run.get_outputs()} == {
        key: spec.shape for key, spec in block.outputs.items()
    }
    assert {value.name for value in run.get_inputs()} == {key for key, spec in block.inputs.items() if spec.required}
    for file in (repository / name / "1").iterdir():  # no path of the exporting machine is in a file
        assert not {text for text in (b"/models/", b".py") if text in file.read_bytes()}, file.name


@pytest.mark.parametrize("name", BLOCKS)
def test_onnx_runtime_warns_of_no_dimension(name, repository, capfd):
    """ONNX Runtime logs no warning about a declared dimension in any run."""
    import onnxruntime

    drawn = [inputs for _, inputs in examples(BLOCKS[name], ("distinct", "ones", "one_query", "one_key"))]
    for file in (repository / name / "1").iterdir():
        one_thread = onnxruntime.SessionOptions()  # which logs warnings
        one_thread.intra_op_num_threads = 1
        run = onnxruntime.InferenceSession(file, one_thread, providers=["CPUExecutionProvider"])
        capfd.readouterr()  # those while loading: a line for each optional input
        options = onnxruntime.RunOptions()
        options.log_severity_level = 2
        for inputs in drawn:
            if inputs.keys() <= input_names(run):
                run.run(None, inputs, options)
        assert capfd.readouterr().err == ""


@pytest.mark.parametrize("positions", [1, 2, 7, 289])
@pytest.mark.parametrize("stack", [encoder, decoder])
def test_examples_are_within_limits(stack, positions):
    """A block with fewer positions than the longest example has only examples that it supports."""
    config = TransformerConfig(d_model=4, num_heads=2, num_layers=1, d_ff=4, vocab_size=9, max_positions=positions)
    block = stack(config)
    module = block.build()
    lengths = set()
    for name, inputs in examples(block):
        actual = block.reference(module, inputs, np.float64)
        past = inputs["past_key"].shape[3] if "past_key" in inputs else 0
        assert actual["weights"].shape[-1] == past + inputs["input_ids"].shape[1] <= positions, name
        lengths.add(past + inputs["input_ids"].shape[1])
    assert max(lengths) == positions
    assert len(documented(block)["input_ids"][0]) <= positions


@pytest.mark.parametrize("name", ["scaled_dot_product", "multi_head", "additive"])
def test_defaults_are_the_same_as_absent_inputs(name, repository):
    block = BLOCKS[name]
    run = session((repository / block.name / "1" / "model.onnx").read_bytes())
    name, inputs = next(examples(block))
    assert name == "documented/plain"
    module = block.build()
    optional = {key: spec for key, spec in block.inputs.items() if not spec.required}
    defaults = {key: default_tensor(spec, block.left_out, module) for key, spec in optional.items()}
    for actual, expected in zip(run.run(None, inputs), run.run(None, {**inputs, **defaults}), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_the_budget_is_tight():
    """A relative error of 1e-5, less than the precision of float16, exceeds the budget."""
    block = BLOCKS["scaled_dot_product"]
    inputs = dict(examples(block))["long/plain"]

    def refer(given, dtype):
        return reference.attention(**given, dtype=dtype)

    exact = refer(inputs, np.float64)
    budget = error_budget(refer, inputs)
    for name, expected in exact.items():
        if name.startswith("present"):
            continue
        assert largest_error(expected.astype(np.float32), expected) <= budget[name]
        assert largest_error((expected * (1 + 1e-5)).astype(np.float32), expected) > budget[name]


def test_error_of_another_shape_or_nan_is_infinite():
    x = np.ones((2, 3))
    assert largest_error(np.ones((3, 2)), x) == np.inf
    assert largest_error(np.full((2, 3), np.nan), x) == np.inf
    assert largest_error(x, np.where(x > 0, -np.inf, x)) == np.inf


def test_versions_of_a_block(few_examples, without_fast_paths, repository, tmp_path, capsys):
    """A name that exists gets the next version; --force replaces the newest; a version that exists stays."""

    def export(*flags):
        status = main(["dot_product", "--repository", str(tmp_path), *flags])
        return status, files()

    def files():
        return {file.relative_to(tmp_path): file.stat().st_ino for file in tmp_path.rglob("*.onnx")}

    shutil.copytree(repository / "dot_product", tmp_path / "dot_product")
    first = files()
    status, second = export()
    assert status == 0
    assert "dot_product: verified" in capsys.readouterr().out
    assert first.items() <= second.items()  # the same files
    newest = second.keys() - first.keys()
    assert {path.parent.as_posix() for path in newest} == {"dot_product/2"}
    assert "model.onnx" in {path.name for path in newest}
    _, third = export("--force")
    assert third.keys() == second.keys()
    assert first.items() <= third.items()
    assert all(second[path] != third[path] for path in newest)
    assert export("--version", "1") == (1, third)
    assert "dot_product/1 exists; --force replaces it" in capsys.readouterr().err
