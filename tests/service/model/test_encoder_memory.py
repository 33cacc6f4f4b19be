"""Runs whose largest tensors are the scores of an encoder, beside a short text of the decoder: estimate and graph."""

import numpy as np
import pytest

from service.model.loader import open_version
from service.ort.provider import Provider

HEADS, LAYERS = 4, 2


@pytest.fixture
def bart(two_stacks):
    model = open_version(two_stacks / "bart" / "1", Provider("cpu", "requested"), 1)
    assert model.outputs["encoder_weights"].shape[::2] == (LAYERS, HEADS, "n")
    return model


@pytest.fixture
def estimate(bart):
    def estimated(n, *outputs):
        inputs = {"input_ids": np.full((1, n), 5), "decoder_input_ids": np.array([[1]])}
        return bart.estimate(inputs, outputs, bart.bind(inputs))

    return estimated


def test_the_scores_of_the_encoder_are_counted(estimate):
    """Runs of 3,000 and 4,500 tokens took 4.9 and 5.6 times the scores of one layer."""
    n = 45
    scores = 4 * HEADS * n * n  # bytes of one layer
    assert 6 * scores < estimate(n, "output").memory < 12 * scores
    assert estimate(n, "encoder_weights").memory >= (2 * LAYERS + 2) * scores


def test_the_time_grows_with_the_pairs_of_the_encoder(estimate):
    short, middle, long = (estimate(n, "output").size for n in (15, 30, 45))
    assert (long - middle) - (middle - short) >= LAYERS * HEADS * (45**2 - 2 * 30**2 + 15**2)


def test_a_long_source_beside_a_short_text_takes_the_kernels(bart):
    source = np.random.default_rng(1).integers(5, 20, (40, 45))
    inputs = {"input_ids": source, "decoder_input_ids": np.ones((40, 1), np.int64)}
    graph = bart.graph_for(inputs, ["output"], bart.bind(inputs))
    assert graph.spec.fast_path == "fused"
    first = {name: array[:1] for name, array in inputs.items()}
    without = bart.graph_for(first, ["output"], bart.bind(first))
    assert without.spec.fast_path == "output"
    output = bart.run(graph, inputs, ["output"])["output"]
    np.testing.assert_allclose(output[:1], bart.run(without, first, ["output"])["output"], rtol=1e-4, atol=1e-5)
