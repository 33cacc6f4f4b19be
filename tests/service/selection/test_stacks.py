"""Attention of two stacks, which differ in layers, heads and lengths; and of half precision."""

from types import SimpleNamespace

import numpy as np
import pytest

from service.errors import Invalid
from service.model.spec import Signature
from service.selection.answer import answered_names, graph_outputs, plan_answer
from service.selection.options import read_selection
from service.tensors.bfloat16 import BFLOAT16, astype, to_float32
from service.tensors.spec import TensorSpec
from tests.support.attention import true_entropy, true_head_statistics, true_received, true_rollout

SIZES = {"batch": 2, "m": 3, "n": 5}
SHAPES = {
    "output": ("batch", "m", 7),
    "weights": (4, "batch", 2, "m", "m"),
    "encoder_weights": (6, "batch", 3, "n", "n"),
    "cross_weights": (4, "batch", 2, "m", "n"),
}


def stacks(dtype):
    """The signature, and arrays of its outputs."""
    specs = {name: TensorSpec(name, dtype, shape) for name, shape in SHAPES.items()}
    rng = np.random.default_rng(1)
    arrays = {
        name: astype(rng.random([SIZES.get(dim, dim) for dim in shape], np.float32), dtype)
        for name, shape in SHAPES.items()
    }
    return Signature(SimpleNamespace(inputs={}), {}, specs), arrays


def answered(signature, arrays, outputs, **options):
    selection = read_selection(options)
    answer = plan_answer(signature, outputs, selection, SIZES, "two")
    found = answer.apply({name: arrays[name] for name in graph_outputs(outputs, signature)})
    assert [output.name for output in answer.outputs] == [
        name for output in outputs for name in answered_names(output, selection)
    ]
    for output in answer.outputs:
        array = found[output.name]
        assert (array.size, array.dtype.itemsize) == (output.count, output.item_bytes)
    return found


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16], ids=str)
def test_both_stacks(dtype):
    signature, arrays = stacks(dtype)
    exact = {name: to_float32(array).astype(np.float32) for name, array in arrays.items()}
    names = ["weights", "encoder_weights", "cross_weights"]
    found = answered(signature, arrays, ["output", *names], layers="-1", heads="1,0", queries="::2")
    for name in names:
        assert found[name].dtype == dtype
        np.testing.assert_array_equal(to_float32(found[name]), exact[name][-1:, :, [1, 0], ::2])
    np.testing.assert_array_equal(found["output"], arrays["output"])
    error = {"float32": 1e-6, "float16": 1e-3}.get(str(dtype), 1e-2)
    found = answered(signature, arrays, names, reduce_heads="mean", reduce_layers="max", weights_pool=2)
    for name in names:
        assert found[name].dtype == dtype
        assert found[name].shape == (2, 2, 2)
        cells = exact[name].astype(np.float64).mean(2).max(0)
        np.testing.assert_allclose(to_float32(found[name])[:, 0, 0], _first_cell(cells), rtol=error)
    found = answered(signature, arrays, names, weights_dtype="uint8")
    for name in names:
        scale = found[f"{name}_scale"][0]
        assert scale == pytest.approx(float(exact[name].max()) / 255, rel=1e-6)
        np.testing.assert_allclose(found[name] * scale, exact[name], atol=scale / 2 * 1.0001)
    found = answered(signature, arrays, names, weights_top_k=2, weights_dtype="float16")
    assert found["weights_indices"].shape == (4, 2, 2, 3, 2)
    assert found["encoder_weights"].dtype == np.float16


def test_derived_outputs_are_of_the_selected_weights():
    signature, arrays = stacks(np.dtype(np.float32))
    names, w = ["entropy", "received", "rollout", "head_statistics"], arrays["weights"][:, :, [1]]
    rows = w[..., [2, 0], :]
    expected = {
        "entropy": true_entropy(rows),
        "received": true_received(rows),
        "head_statistics": true_head_statistics(rows, [2, 0]),
    }
    found = answered(signature, arrays, names, heads="1", queries="2,0")
    reduced = answered(signature, arrays, names, heads="1", queries="2,0", reduce_heads="max", reduce_layers="mean")
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(reduced[name], array.max(2).mean(0), rtol=1e-5, atol=1e-6)
    whole = arrays["weights"]
    for options, rollout in (
        ({"queries": "2,0"}, true_rollout(whole)[:, [2, 0]]),
        ({"heads": "1", "layers": "1:"}, true_rollout(w[1:])),
        ({"reduce_heads": "max"}, true_rollout(whole, np.max)),
        ({"weights_pool": 1}, true_rollout(whole).mean((1, 2), keepdims=True)),
    ):
        found = answered(signature, arrays, ["rollout"], **options)["rollout"]
        np.testing.assert_allclose(found, rollout, rtol=1e-5, atol=1e-7)


def _first_cell(matrices):
    """The mean of the first of two cells along queries and keys."""
    m, n = matrices.shape[-2:]
    return matrices[:, : m // 2, : n // 2].mean((1, 2))


def test_an_index_has_to_be_in_range_of_each_requested_output():
    signature, arrays = stacks(np.dtype(np.float32))
    assert answered(signature, arrays, ["encoder_weights"], layers="5")["encoder_weights"].shape[0] == 1
    with pytest.raises(Invalid, match="layers: expected indices from -4 to 3, for 4 layers of weights, got 5"):
        answered(signature, arrays, ["encoder_weights", "weights"], layers="5")
