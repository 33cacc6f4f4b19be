"""Interventions and the lens of ``generate`` in both clients, and of ``heed run --generate``."""

import asyncio
import json

import httpx
import numpy as np
import pytest

from heed_client import AsyncClient
from heed_client.__main__ import main

TEXT, COUNT = "the cat sat", 5
STEERING = {"at": "hidden", "layers": 1, "positions": "-1:", "add": {"text": "a dog", "scale": 4}}
pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.fixture(scope="module")
def expected(url):
    """What the server answers without a client."""
    body = {"text": TEXT, "max_new_tokens": COUNT, "ignore_eos": True, "lens_top_k": 2, "interventions": [STEERING]}
    return httpx.post(f"{url}/v1/generate/gpt", json=body).json()["generated"]


@pytest.fixture
def run(url, capsys):
    """Runs ``heed run gpt --generate``; returns its status, and what it wrote to both streams."""

    def run(*flags):
        own = ["--text", TEXT, "--generate", str(COUNT), "--set", "ignore_eos=true", *flags]
        try:
            status = main(["gpt", "--url", url, *own])
        except SystemExit as error:
            status = error.code
        return status, *capsys.readouterr()

    return run


def assert_as_expected(tokens, expected):
    assert [token.id for token in tokens] == [token["id"] for token in expected]
    for token, theirs in zip(tokens, expected, strict=True):
        assert token.lens.indices.tolist() == theirs["lens"]["indices"]
        assert token.lens.probabilities.tolist() == theirs["lens"]["probabilities"]
        assert token.lens.predicted == theirs["lens"]["tokens"]
        assert token.lens.ranks.tolist() == theirs["ranks"]
        assert token.outputs == {}


def test_tokens_of_a_changed_run_have_a_lens(heed, expected):
    options = {"max_new_tokens": COUNT, "ignore_eos": True, "lens_top_k": 2, "interventions": [STEERING]}
    generation = heed.generate("gpt", TEXT, **options)
    assert_as_expected([*generation], expected)
    assert_as_expected(generation.result().generated, expected)
    plain = heed.generate("gpt", TEXT, max_new_tokens=COUNT, ignore_eos=True).result().generated
    assert [token.id for token in plain] != [token["id"] for token in expected]
    assert plain[0].lens is None


def test_vectors_may_be_arrays(heed):
    change = {"at": "hidden", "layers": np.int64(1), "replace": np.zeros(32)}
    generated = [
        heed.generate("gpt", TEXT, max_new_tokens=COUNT, ignore_eos=True, interventions=[one]).result().generated
        for one in (change, {"at": "hidden", "layers": 1, "scale": 0})
    ]
    assert generated[0] == generated[1]


def test_the_asynchronous_client_does_the_same(url, expected):
    async def generated():
        options = {"max_new_tokens": COUNT, "ignore_eos": True, "lens_top_k": 2, "interventions": [STEERING]}
        async with AsyncClient(url) as heed:
            return [token async for token in heed.generate("gpt", TEXT, **options)]

    assert_as_expected(asyncio.run(generated()), expected)


def test_the_command_writes_the_changed_text(run, expected):
    change = ["--intervene", json.dumps(STEERING), "--lens", "2"]
    status, printed, wrong = run("--json", *change)
    assert status == 0, wrong
    for token, theirs in zip(json.loads(printed)["generated"], expected, strict=True):
        assert token["id"] == theirs["id"]
        assert token["lens"]["indices"] == theirs["lens"]["indices"]
        assert token["lens"]["predicted"] == theirs["lens"]["tokens"]
        assert token["lens"]["ranks"] == theirs["ranks"]


def test_the_command_draws_what_each_layer_predicts(run, expected):
    status, printed, wrong = run("--intervene", json.dumps(STEERING), "--lens", "2")
    assert status == 0, wrong
    head, *layers = [line.split() for line in printed.splitlines()[-4:]]
    assert head[0] == "layer"
    assert [line[0] for line in layers] == ["0", "1", "2"]
    for line, layer in zip(layers, range(3), strict=True):
        shown = [float(cell) for cell in line[2::2]]
        np.testing.assert_allclose(shown, [one["lens"]["probabilities"][layer][0] for one in expected], atol=0.006)
