"""The estimate of a run whose largest tensors are the scores of an encoder, beside a short text of the decoder."""

import numpy as np
import pytest

from service.model.loader import open_version
from service.ort.provider import Provider

HEADS, LAYERS = 4, 2


@pytest.fixture
def estimate(two_stacks):
    model = open_version(two_stacks / "bart" / "1", Provider("cpu", "requested"), 1)
    assert model.outputs["encoder_weights"].shape[::2] == (LAYERS, HEADS, "n")

    def estimated(n, *outputs):
        inputs = {"input_ids": np.full((1, n), 5), "decoder_input_ids": np.array([[1]])}
        return model.estimate(inputs, outputs, model.bind(inputs))

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
