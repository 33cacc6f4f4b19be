"""``heed run``: files in, files out, and errors that name the argument."""

import base64
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from heed_client import Client
from tests.support.client_calls import SDPA, sdpa

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SENTENCE = ["--request", str(EXAMPLES / "sentence.json"), "--labels", str(EXAMPLES / "sentence.tokens.json")]


@pytest.fixture
def expected(client):
    with Client(str(client.base_url)) as heed:
        return heed.attend(SDPA, **sdpa(), is_causal=True)


def written(folder, kind, tensors):
    """The flags that name ``tensors`` in files of ``kind``."""
    if kind == "npy":
        for name, array in tensors.items():
            np.save(folder / f"{name}.npy", array)
        return [part for name in tensors for part in (f"--{name}", folder / f"{name}.npy")]
    path = folder / f"tensors.{kind}"
    if kind == "npz":
        np.savez(path, **tensors)
    elif kind == "safetensors":
        safetensors.numpy.save_file(tensors, path)
    else:
        path.write_text(json.dumps({name: array.tolist() for name, array in tensors.items()}))
    return [part for name in tensors for part in (f"--{name}", path)]


@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors", "json"])
@pytest.mark.parametrize("out", ["npz", "safetensors", "json", "-"])
def test_formats(attend, tmp_path, expected, kind, out):
    where = out if out == "-" else tmp_path / f"out.{out}"
    status, said, wrong = attend(SDPA, *written(tmp_path, kind, sdpa()), "--is-causal", "--out", where)
    assert (status, wrong) == (0, "")
    if out == "npz":
        found = dict(np.load(where))
    elif out == "safetensors":
        found = safetensors.numpy.load_file(where)
    else:
        text = said if out == "-" else where.read_text()
        found = {name: np.asarray(value, np.float32) for name, value in json.loads(text).items()}
    assert found.keys() == {"output", "weights"}
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], strict=True)


@pytest.mark.parametrize("kind", ["npz", "safetensors", "json"])
def test_a_whole_request(attend, tmp_path, expected, kind):
    *_, path = written(tmp_path, kind, sdpa())
    status, *_ = attend(SDPA, "--request", path, "--is-causal", "--outputs", "weights", "--out", tmp_path / "w.npy")
    assert status == 0
    np.testing.assert_array_equal(np.load(tmp_path / "w.npy"), expected.weights)


def test_json_holds_tensors_as_the_api_takes_them(attend, tmp_path, expected):
    query, key, value = sdpa().values()
    request = {
        "query": {"shape": query.shape, "data": query.ravel().tolist()},
        "key": {"shape": key.shape, "dtype": "float32", "base64": base64.b64encode(key.tobytes()).decode()},
        "value": value.tolist(),
        "is_causal": True,
        "outputs": ["weights"],
    }
    (tmp_path / "r.json").write_text(json.dumps(request))
    _, said, _ = attend(SDPA, "--request", tmp_path / "r.json")
    (tmp_path / "q.json").write_text(json.dumps(request.pop("query")))
    (tmp_path / "r.json").write_text(json.dumps(request))
    assert attend(SDPA, "--request", tmp_path / "r.json", "--query", tmp_path / "q.json") == (0, said, "")
    assert json.loads(said) == {"weights": expected.weights.astype(str).astype(float).tolist()}


def test_bfloat16_of_safetensors(attend, tmp_path, client):
    rounded = {name: torch.from_numpy(array).bfloat16() for name, array in sdpa().items()}
    safetensors.torch.save_file(rounded, tmp_path / "t.safetensors")
    attend(SDPA, "--request", tmp_path / "t.safetensors", "--out", tmp_path / "out.npz")
    with Client(str(client.base_url)) as heed:
        np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["output"], heed.attend(SDPA, **rounded).output)


@pytest.mark.parametrize("command_name", ["run", "attend"])
def test_standard_input_and_other_names(client, tmp_path, expected, command_name):
    """As a user runs it, by name and alias; the query is read from a pipe, the keys from a file under another name."""
    query, key, value = sdpa().values()
    np.savez(tmp_path / "t.npz", k=key, value=value)
    np.save(tmp_path / "q.npy", query)
    command = [sys.executable, "-m", "heed", command_name, SDPA, "--query", "-", "--tensor", f"key={tmp_path}/t.npz:k"]
    with (tmp_path / "q.npy").open("rb") as content:
        done = subprocess.run(
            [*command, "--value", tmp_path / "t.npz", "--set", "is_causal=true", "--url", str(client.base_url)],
            stdin=content, env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'clients'}"},
            cwd=tmp_path, capture_output=True, check=True,
        )  # fmt: skip
    np.testing.assert_array_equal(np.asarray(json.loads(done.stdout)["weights"], np.float32), expected.weights)


def test_scores_and_the_largest(attend, tmp_path):
    files = written(tmp_path, "npy", sdpa())
    _, said, _ = attend(SDPA, *files, "--is-causal", "--outputs", "scores")
    assert json.loads(said)["scores"][0][1] is None
    attend(SDPA, *files, "--weights-top-k", 2, "--out", tmp_path / "o.npz")
    assert {name: array.shape for name, array in np.load(tmp_path / "o.npz").items()} == {
        "output": (5, 3), "weights_indices": (5, 2), "weights_values": (5, 2)
    }  # fmt: skip
    _, said, _ = attend(SDPA, *files, "--weights-top-k", 2, "--outputs", "weights")
    assert json.loads(said)["weights"].keys() == {"indices", "values"}


def test_lists_in_place_of_files(attend):
    _, said, _ = attend("dot_product", "--query", "[[1, 0]]", "--key", "[[0, 0], [0, 1]]", "--value", "[[2], [4]]")
    assert json.loads(said) == {"output": [[3.0]], "weights": [[0.5, 0.5]]}
    _, said, _ = attend("encoder", "--input-ids", "[[1, 2, 3]]", "--layers", "[1]", "--outputs", "weights")
    assert np.shape(json.loads(said)["weights"]) == (1, 1, 4, 3, 3)


def test_describe(attend, client):
    status, said, _ = attend("multi_head", "--describe")
    assert status == 0
    described = client.get("/v1/attention/multi_head").json()
    for one in (*described["inputs"], *described["parameters"], *described["outputs"]):
        assert f"\n  {one['name']} " in said
        assert one["description"] in said


def test_help_names_every_block_input(attend, client):
    """Flags of their own for what the blocks take; ``--tensor`` and ``--set`` are for your own and learned matrices."""
    status, said, _ = attend("--help")
    assert status == 0
    for line in client.get("/v1/attention").json()["blocks"]:
        described = client.get(f"/v1/attention/{line['block']}").json()
        for one in (*described["inputs"], *described["parameters"]):
            is_learned = one["name"].endswith(("_weight", "_bias")) and one["name"] != "attn_bias"
            assert is_learned or re.search(f"--{one['name'].replace('_', '-')}[ ,]", said), one["name"]


def test_what_is_wrong_names_the_argument(attend, tmp_path):
    files = written(tmp_path, "npy", sdpa())
    (tmp_path / "text").write_text("hello")
    (tmp_path / "cut.npy").write_bytes((tmp_path / "query.npy").read_bytes()[:150])
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "cut.safetensors").write_bytes(b'\x05\0\0\0\0\0\0\0{"a":1}')
    (tmp_path / "bad.json").write_text('{"query": [1,')
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "two.json").write_text('{"a": [1], "b": [1]}')
    (tmp_path / "odd.json").write_text('{"query": {"shape": [2]}}')
    np.save(tmp_path / "pickled.npy", np.array([{}]), allow_pickle=True)
    np.save(tmp_path / "wide.npy", np.ones((7, 9)))
    cases = [
        (["--query", tmp_path / "none.npy"], "--query .*none.npy: No such file"),
        (["--query", "[[1], [2, 3]]"], "query: expected rows of one length, got 1 item at .0. and 2 items at .1."),
        (["--query", tmp_path / "text"], "--query .*expected npy, npz, safetensors or JSON"),
        (["--query", tmp_path / "cut.npy"], "--query .*cut.npy: "),
        (["--query", tmp_path / "cut.npz"], "--query .*cut.npz: "),
        (["--query", tmp_path / "cut.safetensors"], "--query .*cut.safetensors: "),
        (["--query", tmp_path / "pickled.npy"], "--query .*pickled.npy: .*allow_pickle"),
        (["--query", tmp_path / "bad.json"], "bad.json: it is no JSON: line 1, column 14: expected a value, got"),
        (["--query", tmp_path / "odd.json"], "--query .*expected \"shape\" and \"data\""),
        (["--query", tmp_path / "two.json"], "--query .*holds no 'query'; there are a, b"),
        (["--query", "-", "--key", "-"], "only one FILE can be standard input"),
        (["--request", tmp_path / "list.json"], "--request .*expected tensors by name"),
        (["--key", tmp_path / "wide.npy"], r"--key: expected axis 1 \(d_k\) to be 8, as in query, got 9 \(shape"),
        (["--set", "bandwidth=1"], "--bandwidth: unknown field"),
        (["--set", "scale"], "--set: expected NAME=VALUE"),
        (["--tensor", "key"], "--tensor: expected NAME=FILE"),
        (["--at", "a"], "--at: expected whole numbers"),
        (["--outputs", "all"], "--outputs: unknown output 'all'"),
        (["--weights-top-k", "99"], "--weights-top-k: expected at most 7"),
        (["--out", "out.txt"], r"--out: expected a file that ends in \.npz"),
        (["--out", tmp_path / "both.npy"], "both.npy: .npy holds one array, there are output, weights"),
        (["--out", tmp_path / "no" / "out.npz"], "no/out.npz: No such file"),
        (["--show", "--at", "1"], r"--at: expected indices within \[\], the leading axes of the weights, got \[1\]"),
        (["--show", "--weights-top-k", "2"], "--show: needs all weights"),
        (["--show", "--outputs", "output"], "--show: needs weights among --outputs"),
        (["--show", *SENTENCE[2:]], "--labels: 16 words for 5 queries"),
        (["--show", "--labels", tmp_path / "list.json"], "--labels .*expected a JSON list of texts"),
        (["--plot", tmp_path / "plot.xyz"], "--plot: expected a file that ends in .png, .svg or .pdf, got .*plot.xyz"),
        (["--plot", tmp_path / "no" / "plot.png"], "--plot .*plot.png: No such file"),
        (["--html", tmp_path / "no" / "page.html"], "--html .*page.html: No such file"),
    ]  # fmt: skip
    for arguments, expected in cases:
        status, said, wrong = attend(SDPA, *files, *arguments)
        assert (status, said) == (2, ""), arguments
        assert re.search(expected, wrong), wrong
        assert "Traceback" not in wrong
    status, _, wrong = attend("none", *files)
    assert (status, "none" in wrong) == (2, True)


def test_no_server(attend, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        status, _, wrong = attend(SDPA, *written(tmp_path, "npy", sdpa()), "--url", url)
    assert status == 1
    assert wrong.startswith(f"heed run: --url: no answer from {url}")
    for url in ("http://[", "", "ftp://127.0.0.1"):
        status, _, wrong = attend(SDPA, "--query", "[[1]]", "--url", url)
        assert (status, wrong.startswith("heed run: --url: expected a URL such as")) == (2, True), wrong


@pytest.mark.parametrize("form", ["lists", "flat"])
def test_masks(attend, tmp_path, form):
    """In JSON null is -infinity; 0 and 1 are refused unless they are meant, integers of a file always."""
    tensors = written(tmp_path, "npy", sdpa())
    bits = np.indices((5, 7)).sum(axis=0) % 2

    def run(words, *flags):
        named = np.array(words, object)[bits]
        mask = named.tolist() if form == "lists" else {"shape": bits.shape, "data": named.ravel().tolist()}
        (tmp_path / "mask.json").write_text(json.dumps(mask))
        return attend(SDPA, *tensors, "--attn-mask", tmp_path / "mask.json", "--outputs", "weights", *flags)

    for zero, one in ((0, 1), (0.0, 1.0)):
        status, _, error = run([zero, one])
        assert (status, "--attn-mask: holds nothing but 0 and 1" in error) == (2, True)
        assert run([zero, one], "--additive-mask")[0] == 0
    np.save(tmp_path / "int.npy", bits)
    status, _, error = attend(SDPA, *tensors, "--attn-mask", tmp_path / "int.npy", "--additive-mask")
    assert (status, "--attn-mask: expected booleans (true = may attend) or floats" in error) == (2, True)
    assert run([0, None]) == run([0.0, None]) == run([True, False])
