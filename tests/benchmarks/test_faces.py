"""Every protocol carries the same numbers, and wrong responses are detected."""

import json

import numpy as np
import pytest

from benchmarks.serving.formats import ID, PROTOCOLS, bodies, max_difference, parse_response, v2_response
from benchmarks.serving.workloads import LENGTHS, WORKLOADS


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_bodies_carry_the_tensors(protocol):
    workload = WORKLOADS["W1"]
    (text,), headers = (made := bodies(workload, workload.graph, protocol)).texts, made.headers
    cut = int(headers.get("Inference-Header-Content-Length", len(text)))
    document = json.loads(text[:cut])
    at = cut
    for name, array in workload.tensors[0].items():
        if protocol in ("native", "plain"):
            got = np.array(document[name], np.float32)
        elif protocol == "v2-json":
            given = next(of for of in document["inputs"] if of["name"] == name)
            got = np.array(given["data"], np.float32).reshape(given["shape"])
        else:
            got = np.frombuffer(text, np.float32, array.size, at).reshape(array.shape)
            at += array.nbytes
        np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize("protocol", ["v2-json", "v2-binary"])
def test_ids_can_be_replaced(protocol):
    workload = WORKLOADS["W1"]
    text = bodies(workload, workload.graph, protocol, with_id=True).texts[0]
    assert text.count(f'"id":"{ID}"'.encode()) == 1


def test_mixed_lengths_share_one_header():
    workload = WORKLOADS["W6"]
    made = bodies(workload, workload.graph, "v2-binary")
    cut = int(made.headers["Inference-Header-Content-Length"])
    assert len(made.texts) == len(LENGTHS)
    assert len(set(LENGTHS)) > 8
    for text, m in zip(made.texts, LENGTHS, strict=True):
        assert json.loads(text[:cut])["inputs"][0]["shape"] == [1, m, 256]
        assert len(text) == cut + 4 * m * 256


@pytest.mark.parametrize("binary", [True, False])
def test_answers_are_understood(binary):
    right = {"output": np.arange(6, dtype=np.float32).reshape(1, 2, 3)}
    content, length = v2_response(right, "sdpa", binary)
    assert max_difference(parse_response(content, length if binary else None, ("output",)), right) == 0


def test_wrong_answers_are_noticed():
    right = {"output": np.zeros((1, 2), np.float32)}
    assert max_difference({"output": np.array([[0, 1]], np.float32)}, right) == 1
    with pytest.raises(ValueError, match="output: expected"):
        max_difference({"output": np.zeros((1, 3), np.float32)}, right)
    with pytest.raises(ValueError, match="got none"):
        max_difference({}, right)
