"""``heed run`` with selected and pooled weights: flags, errors that name them, and heat maps with the right labels."""

import json

import numpy as np
import pytest

from heed_client import Client
from heed_client.labels import pool_labels, select_labels
from tests.support.client_calls import SDPA, sdpa

WORDS = [f"w{place}" for place in range(6)]


@pytest.fixture
def request_file(tmp_path):
    inputs = {name: array.tolist() for name, array in sdpa(2, 3, m=6, n=6).items()}
    (tmp_path / "request.json").write_text(json.dumps(inputs))
    (tmp_path / "labels.json").write_text(json.dumps(WORDS))
    return ["--request", tmp_path / "request.json"]


def weights_of(printed):
    return np.asarray(json.loads(printed)["weights"], np.float32)


FLAGS = {
    "selection": (["--heads", "0,2", "--queries=-1"], {"heads": [0, 2], "queries": -1}),
    "mean": (["--reduce-heads", "mean"], {"reduce_heads": "mean"}),
    "pool": (["--weights-pool", "2", "--weights-pool-by", "max"], {"weights_pool": 2, "weights_pool_by": "max"}),
    "decimals": (["--decimals", "3"], {"decimals": 3}),
    "uint8": (["--weights-dtype", "uint8"], {"weights_dtype": "uint8"}),
}


@pytest.mark.parametrize(("flags", "options"), FLAGS.values(), ids=FLAGS)
def test_flags(attend, client, request_file, flags, options):
    status, printed, wrong = attend(SDPA, *request_file, *flags)
    assert (status, wrong) == (0, "")
    with Client(str(client.base_url)) as heed:
        expected = heed.attend(SDPA, **sdpa(2, 3, m=6, n=6), **options).weights
    np.testing.assert_array_equal(weights_of(printed), expected)


@pytest.mark.parametrize("layers", ["1", "-1", "1:", "[1]", "FILE"])
def test_layers_are_a_selection_or_a_file(attend, tmp_path, layers):
    np.save(tmp_path / "layers.npy", np.array([1]))
    layers = str(tmp_path / "layers.npy") if layers == "FILE" else layers
    status, printed, wrong = attend(
        "encoder", "--input-ids", "[[1, 2, 3]]", f"--layers={layers}", "--reduce-layers", "max"
    )
    assert (status, wrong) == (0, "")
    _, whole, _ = attend("encoder", "--input-ids", "[[1, 2, 3]]")
    np.testing.assert_array_equal(weights_of(printed), weights_of(whole)[1])


def test_derived_outputs_and_their_description(attend, tmp_path, request_file):
    out = tmp_path / "out.npz"
    assert attend(SDPA, *request_file, "--outputs", "entropy,received", "--out", out)[0] == 0
    assert {name: array.shape for name, array in np.load(out).items()} == {"entropy": (2, 3, 6), "received": (2, 3, 6)}
    assert "outputs on request" in attend(SDPA, "--describe")[1]


def test_heat_maps(attend, tmp_path, request_file):
    labels = ["--labels", tmp_path / "labels.json"]
    status, printed, wrong = attend(
        SDPA, *request_file, *labels, "--queries", "4,0:2", "--heads", "1", "--at", "0,0", "--show"
    )
    assert (status, wrong) == (0, "")
    rows = [line.split()[0] for line in printed.splitlines() if line.startswith("w") and not line.startswith("weights")]
    assert rows[-3:] == ["w4", "w0", "w1"]
    status, printed, wrong = attend(
        SDPA, *request_file, "--queries", "4,5", "--reduce-heads", "mean", "--at", "1", "--show"
    )
    assert (status, wrong) == (0, "")
    assert [line.split()[0] for line in printed.splitlines()][-2:] == ["4", "5"]
    html = tmp_path / "page.html"
    assert (
        attend(SDPA, *request_file, *labels, "--weights-pool", "4", "--weights-dtype", "float16", "--html", html)[0]
        == 0
    )
    data = json.loads(html.read_text().partition('id="data">')[2].partition("</script>")[0])
    assert data["shape"][-2:] == [4, 4]
    assert np.prod(data["shape"][:2]) == 6
    assert [label["text"] for label in data["rows"]] == ["w0", "w1…w2", "w3", "w4…w5"]
    assert data["columns"] is None  # the same tokens
    assert attend(SDPA, *request_file, "--heads", "0", "--plot", tmp_path / "plot.png")[0] == 0
    status, _, wrong = attend(SDPA, *request_file, "--labels", '["a"]', "--queries", "5", "--show")
    assert (status, "--labels: 1 words, but query 5 is selected" in wrong) == (2, True)


def test_errors_name_the_flag(attend, request_file):
    status, _, wrong = attend(SDPA, *request_file, "--heads", "3")
    assert status == 2
    assert "heed run: --heads: expected indices from -3 to 2" in wrong
    status, _, wrong = attend(SDPA, *request_file, "--reduce-layers", "mean")
    assert (status, "--reduce-layers" in wrong) == (2, True)
    status, _, wrong = attend("encoder", "--input-ids", "[[1]]", "--layers", "no-such-file")
    assert (status, "--layers no-such-file" in wrong) == (2, True)


def test_labels():
    assert select_labels(WORDS, "4:,0") == ["w4", "w5", "w0"]
    assert select_labels(WORDS, [-1, 2]) == ["w5", "w2"]
    assert select_labels(WORDS, 3) == ["w3"]
    assert pool_labels(WORDS, 6) == WORDS
    assert pool_labels(WORDS, 1) == ["w0…w5"]
