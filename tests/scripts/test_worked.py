"""The worked answers of the blocks' pages are those of the service, of the float64 reference, and of a hand."""

from math import exp, sqrt, tanh

import numpy as np
import pytest

from models.catalogue import BLOCKS
from scripts.guide.blocks import page
from scripts.guide.worked import REQUEST, TINY, arrays, example, short, worked


def softmax(*scores: float) -> list[float]:
    total = sum(map(exp, scores))
    return [exp(score) / total for score in scores]


ROOT = sqrt(2)
Q = softmax(1 / ROOT, 2 / ROOT)  # of the query [1, 2] and the keys [1, 0] and [0, 1], whose width is 2
DOT = softmax(1, 2)
X = [softmax(5 / ROOT, 3 / ROOT), softmax(3 / ROOT, 9 / ROOT)]  # of x: [1, 2] and [3, 0]
TANH = softmax(tanh(1 + 1) + tanh(2 + 0), tanh(1 + 0) + tanh(2 + 1))
KV = [[softmax(1, 3), softmax(3, 9)], [softmax(2, 6), softmax(0, 0)]]  # each number a head, the key the first number
GROUPS = [
    [softmax(1, 0), softmax(0, 0)], [softmax(0, 0), softmax(1, 0)],  # the key is the first number
    [softmax(0, 2), softmax(0, 0)], [softmax(0, 1), softmax(0, 2)],  # the second
]  # fmt: skip
NORMED = [[1.0, -1.0], [-1.0, 1.0]]
FAR = softmax(2 / ROOT, -2 / ROOT)
HAND = {  # the outputs of each block with learned weights
    "projected": {"weights": [Q], "output": [[10 * Q[0] + 20 * Q[1]]]},
    "self_attention": {"weights": X, "output": [[row[0] + 3 * row[1], 2 * row[0]] for row in X]},
    "cross_attention": {"weights": [Q], "output": [Q]},
    "multi_head": {
        "weights": [[softmax(1, 0)], [softmax(0, 2)]],
        "output": [[10 * softmax(1, 0)[0], 20 * softmax(0, 2)[1]]],
    },
    "multi_head_self_attention": {"weights": X, "output": [[row[0] + 3 * row[1], 0] for row in X]},
    "grouped_query": {
        "weights": GROUPS,
        "output": [[GROUPS[head][row][head // 2] for head in range(4)] for row in range(2)],
    },
    "multi_query": {
        "weights": KV,
        "output": [[KV[head][row][0] + 3 * KV[head][row][1] for head in range(2)] for row in range(2)],
    },
    "additive": {"weights": [TANH], "output": [[10 * TANH[0] + 20 * TANH[1]]]},
    "luong_general": {"weights": [DOT], "output": [[10 * DOT[0] + 20 * DOT[1]]]},
    "luong_concat": {"weights": [TANH], "output": [[10 * TANH[0] + 20 * TANH[1]]]},
    "encoder": {"weights": [FAR, FAR[::-1]], "output": NORMED},
    "decoder": {"weights": [[1, 0], FAR[::-1]], "output": NORMED},
    "cross_decoder": {
        "weights": X,
        "cross_weights": [softmax(-1 / ROOT, 1 / ROOT), softmax(1 / ROOT, -1 / ROOT)],
        "output": NORMED[::-1],
    },
}


@pytest.mark.parametrize("name", BLOCKS)
def test_it_is_that_of_the_reference(name):
    tiny, module, request = example(BLOCKS[name])
    inputs = {name: x.astype(np.float64) if x.dtype.kind == "f" else x for name, x in arrays(tiny, request).items()}
    reference = tiny.reference(module, inputs, np.float64)
    answer = worked(BLOCKS[name])
    assert {"weights", "output"} <= answer.keys()
    for output, numbers in answer.items():
        np.testing.assert_allclose(numbers, short(reference[output]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", TINY)
def test_it_is_that_of_a_hand(name):
    answer = worked(BLOCKS[name])
    assert HAND[name].keys() == answer.keys() - {"scores"}
    for output, numbers in HAND[name].items():
        np.testing.assert_allclose(answer[output], numbers, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in BLOCKS if name not in TINY])
def test_it_is_that_of_the_service(client, name):
    expected = worked(BLOCKS[name])
    answer = client.post(f"/v1/attention/{name}", json={**REQUEST, "outputs": [*expected]}).json()
    for output, numbers in expected.items():
        np.testing.assert_allclose(answer[output], numbers, rtol=1e-6)


@pytest.mark.parametrize("name", BLOCKS)
def test_every_page_has_one(name):
    text = page(BLOCKS[name])
    assert "## A worked answer" in text
    assert ("ones on its diagonal" in text) == any(True for _ in BLOCKS[name].build().parameters())
