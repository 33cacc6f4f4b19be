"""What is planned for a selection: its cost in copies, memory and encoding, and attention of two stacks."""

import json
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from heed_client.v2 import binary_request
from service.base.errors import Invalid
from service.model.spec import Signature
from service.native.endpoint import AttentionEndpoint
from service.selection.answer import answered_names, graph_outputs, plan_answer
from service.selection.options import read_selection
from service.tensors.bfloat16 import BFLOAT16, astype, to_float32
from service.tensors.spec import TensorSpec
from service.v2.infer.endpoint import InferEndpoint
from tests.support.attention import true_entropy, true_head_statistics, true_pool, true_received, true_rollout
from tests.support.decoding import context, drain, endpoint
from tests.support.tasks import opened

SIZES = {"batch": 1, "n": 256, "layers": 2}
KIB = 1 << 10


@pytest.fixture(scope="module")
def model(repository):
    return opened(repository / "encoder" / "1")


@pytest.fixture(scope="module")
def weights():
    return np.random.default_rng(0).random((2, 1, 4, 256, 256), np.float32)  # 2 MiB


def planned(model, outputs, **options):
    return plan_answer(model.signature, outputs, read_selection(options), SIZES, "encoder")


MOST_KIB = {  # that is allocated for one answer; a matrix has 256 KiB
    "a head": (["weights"], {"heads": "1", "queries": "0:4"}, 2 * 4 * 1 + 8),
    "a row of some heads": (["weights"], {"heads": "0,1,3", "queries": "7"}, 2 * 3 + 16),
    "scattered queries": (["weights"], {"queries": "0,5,6"}, 2 * (2 * 4 * 3) + 8),
    "mean over heads": (["weights"], {"reduce_heads": "mean", "queries": "0:64"}, 2 * 2 * 64 + 8),
    "pooled": (["weights"], {"weights_pool": 16}, 2048 + 256),
    "the largest": (["weights"], {"weights_top_k": 4, "heads": "0"}, 2 * 4 * 2048),
    "entropy": (["entropy"], {}, 5 * 1024),
    "received": (["received"], {}, 1024),
    "head statistics": (["head_statistics"], {}, 6 * 1024),
    "rollout": (["rollout"], {}, 4 * 256 + 256),
}


@pytest.mark.parametrize(("outputs", "options", "most"), MOST_KIB.values(), ids=MOST_KIB)
def test_memory(model, weights, outputs, options, most):
    """What is allocated is bounded by what is answered, and is in the estimate."""
    answer = planned(model, outputs, **options)
    arrays = {"weights": weights}
    answer.apply(arrays)
    tracemalloc.start()
    answered = answer.apply(arrays)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= most * KIB
    own = sum(array.nbytes for array in answered.values())
    parts = 4 * 2**20  # temporary arrays of a part, which do not grow with the answer
    assert peak <= own + answer.memory + parts
    for output in answer.outputs:
        array = answered[output.name]
        assert (output.count, output.item_bytes) == (array.size, array.dtype.itemsize)
        assert array.flags.c_contiguous


def request(model, kind, served=None, **options):
    """A decoded request for the weights of 256 tokens."""
    ids = np.arange(256).reshape(1, 256) % 100
    if kind is AttentionEndpoint:
        body = json.dumps({"input_ids": ids.tolist(), "outputs": ["weights"], **options}).encode(), b""
        return drain((served or endpoint(kind)).decode(model, body, context()))
    headers, pieces = binary_request({"input_ids": ids}, ["weights"], options)
    of_request = context()
    of_request.headers[b"inference-header-content-length"] = headers["Inference-Header-Content-Length"].encode()
    return drain((served or endpoint(kind)).decode(model, (pieces[0], b"".join(pieces[1:])), of_request))


@pytest.mark.parametrize("kind", [AttentionEndpoint, InferEndpoint])
def test_the_budget_and_the_estimates(model, kind):
    whole = request(model, kind)
    one = request(model, kind, layers="0", heads="1")
    derived = request(model, kind, outputs=["entropy"]) if kind is AttentionEndpoint else None
    assert whole.response_bytes >= 2 * 4 * 256 * 256 * 4
    assert one.response_bytes <= whole.response_bytes / 4  # one of two layers is the graph's own selection
    if derived:
        assert derived.response_bytes <= whole.response_bytes / 100
        assert derived.plan.output_count == 2 * 4 * 256
        assert one.plan.output_count == 256 * 256
        assert list(derived.task.outputs) == ["weights"]
    assert whole.plan.run.answer is None
    assert whole.task.memory == request(model, kind, heads="1").task.memory  # the graph computes all


@pytest.mark.parametrize("kind", [AttentionEndpoint, InferEndpoint])
@pytest.mark.parametrize(
    ("queries", "cached"), [("0,2:4", 1), (":", 1), (",".join(map(str, range(40))), 0), ("1:,0", 0)]
)
def test_plans_with_many_indices_are_not_cached(model, kind, queries, cached):
    served = endpoint(kind)
    request(model, kind, served, queries=queries)
    assert len(served.cache(model)) == cached


@pytest.mark.parametrize("kind", [AttentionEndpoint, InferEndpoint])
def test_large_work_is_a_stage(model, kind):
    """Only work of some microseconds is done at once on the event loop."""
    served = endpoint(kind)
    small = planned(model, ["weights"], layers=None, heads="0", queries="0")
    large = planned(model, ["entropy"])
    arrays = {"weights": np.full((2, 1, 4, 256, 256), 1 / 256, np.float32)}
    with pytest.raises(StopIteration) as done:
        next(served.select(small, arrays))
    assert done.value.value["weights"].shape == (2, 1, 1, 1, 256)
    assert served.selecting_ns(small) < 20_000
    stage = next(served.select(large, arrays))
    assert stage.cost is served.selecting
    assert stage.work()["entropy"].shape == (2, 1, 4, 256)
    assert served.selecting_ns(large) == float("inf")  # until it was measured
    served.selecting.learn(large.work, 1e6)
    assert 0 < served.selecting_ns(large) < float("inf")


STACK_SIZES = {"batch": 2, "m": 3, "n": 5}  # of two stacks, which differ in layers, heads and lengths
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
        name: astype(rng.random([STACK_SIZES.get(dim, dim) for dim in shape], np.float32), dtype)
        for name, shape in SHAPES.items()
    }
    return Signature(SimpleNamespace(inputs={}), {}, specs), arrays


def answered(signature, arrays, outputs, **options):
    selection = read_selection(options)
    answer = plan_answer(signature, outputs, selection, STACK_SIZES, "two")
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
        cells = [true_pool(layer, 2, np.mean) for layer in exact[name].astype(np.float64).mean(2).max(0)]
        np.testing.assert_allclose(to_float32(found[name]), cells, rtol=error)
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


def test_an_index_has_to_be_in_range_of_each_requested_output():
    signature, arrays = stacks(np.dtype(np.float32))
    assert answered(signature, arrays, ["encoder_weights"], layers="5")["encoder_weights"].shape[0] == 1
    with pytest.raises(Invalid, match=r"^layers: expected indices from -4 to 3, got 5 \(of weights\)$"):
        answered(signature, arrays, ["encoder_weights", "weights"], layers="5")
