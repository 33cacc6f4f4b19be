"""A selection costs what it answers: in copies, in the memory budget and in the estimate of its encoding."""

import json
import tracemalloc

import numpy as np
import pytest

from heed_client.v2 import binary_request
from service.native.endpoint import AttentionEndpoint
from service.selection.answer import plan_answer
from service.selection.options import read_selection
from service.v2.infer.endpoint import InferEndpoint
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


def request(model, kind, **options):
    """A decoded request for the weights of 256 tokens."""
    ids = np.arange(256).reshape(1, 256) % 100
    if kind is AttentionEndpoint:
        body = json.dumps({"input_ids": ids.tolist(), "outputs": ["weights"], **options}).encode(), b""
        return drain(endpoint(kind).decode(model, body, context()))
    headers, pieces = binary_request({"input_ids": ids}, ["weights"], options)
    of_request = context()
    of_request.headers[b"inference-header-content-length"] = headers["Inference-Header-Content-Length"].encode()
    return drain(endpoint(kind).decode(model, (pieces[0], b"".join(pieces[1:])), of_request))


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
    assert whole.plan.answer is None
    assert whole.task.memory == request(model, kind, heads="1").task.memory  # the graph computes all


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
