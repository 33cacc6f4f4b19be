"""``heed run`` and ``heed memory``: files in, files out, selected weights and their heat maps, errors by argument."""

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from heed_client.command.labels import _pool, _select
from tests.support.client_calls import SDPA, page_data, sdpa

ROOT = Path(__file__).parents[3]
WORDS = [f"w{place}" for place in range(6)]
IDS = ["encoder", "--input-ids", "[[1, 2, 3]]"]


@pytest.fixture
def expected(sync_heed):
    return sync_heed.attend(SDPA, **sdpa(), is_causal=True)


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


def numbers(printed):
    return {name: np.asarray(value, np.float32) for name, value in json.loads(printed).items()}


READERS = {
    "npy": lambda _, printed: numbers(printed),
    "npz": lambda path, _: dict(np.load(path)),
    "safetensors": lambda path, _: safetensors.numpy.load_file(path),
    "json": lambda path, _: numbers(path.read_text()),
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("whole", [False, True], ids=["tensors", "request"])
def test_formats(attend, tmp_path, expected, kind, whole):
    """A file holds each tensor or the whole request; .npy has one array: the outputs go to standard output."""
    files, out = written(tmp_path, kind, sdpa()), tmp_path / f"out.{kind}"
    flags = ["--request", files[-1]] if whole and kind != "npy" else files
    outputs = READERS[kind](out, attend(SDPA, *flags, "--is-causal", "--out", "-" if kind == "npy" else out))
    assert outputs.keys() == {"output", "weights"}
    for name, array in outputs.items():
        np.testing.assert_array_equal(array, expected[name], strict=True)
    attend(SDPA, *flags, "--is-causal", "--outputs", "weights", "--out", tmp_path / "w.npy")
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
    printed = attend(SDPA, "--request", tmp_path / "r.json")
    (tmp_path / "q.json").write_text(json.dumps(request.pop("query")))
    (tmp_path / "r.json").write_text(json.dumps(request))
    assert attend(SDPA, "--request", tmp_path / "r.json", "--query", tmp_path / "q.json") == printed
    assert json.loads(printed) == {"weights": expected.weights.astype(str).astype(float).tolist()}


def test_bfloat16_of_safetensors(attend, tmp_path, sync_heed):
    rounded = {name: torch.from_numpy(array).bfloat16() for name, array in sdpa().items()}
    safetensors.torch.save_file(rounded, tmp_path / "t.safetensors")
    attend(SDPA, "--request", tmp_path / "t.safetensors", "--out", tmp_path / "out.npz")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["output"], sync_heed.attend(SDPA, **rounded).output)


def test_standard_input_and_other_names(client, tmp_path, expected):
    """As a user runs it; the query is read from a pipe, the keys from a file under another name."""
    query, key, value = sdpa().values()
    np.savez(tmp_path / "t.npz", k=key, value=value)
    np.save(tmp_path / "q.npy", query)
    command = [sys.executable, "-m", "heed", "run", SDPA, "--query", "-", "--tensor", f"key={tmp_path}/t.npz:k"]
    with (tmp_path / "q.npy").open("rb") as content:
        done = subprocess.run(
            [*command, "--value", tmp_path / "t.npz", "--set", "is_causal=true", "--url", str(client.base_url)],
            stdin=content, env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'clients'}"},
            cwd=tmp_path, capture_output=True, check=True,
        )  # fmt: skip
    np.testing.assert_array_equal(numbers(done.stdout)["weights"], expected.weights)


def test_scores_and_the_largest(attend, tmp_path):
    files = written(tmp_path, "npy", sdpa())
    assert json.loads(attend(SDPA, *files, "--is-causal", "--outputs", "scores"))["scores"][0][1] is None
    attend(SDPA, *files, "--weights-top-k", 2, "--out", tmp_path / "o.npz")
    assert {name: array.shape for name, array in np.load(tmp_path / "o.npz").items()} == {
        "output": (5, 3), "weights_indices": (5, 2), "weights_values": (5, 2)
    }  # fmt: skip
    outputs = json.loads(attend(SDPA, *files, "--weights-top-k", 2, "--outputs", "weights,entropy"))
    assert outputs["weights"].keys() == {"indices", "values"}
    assert np.shape(outputs["entropy"]) == (5,)


def test_lists_in_place_of_files(attend):
    printed = attend("dot_product", "--query", "[[1, 0]]", "--key", "[[0, 0], [0, 1]]", "--value", "[[2], [4]]")
    assert json.loads(printed) == {"output": [[3.0]], "weights": [[0.5, 0.5]]}


def test_describe(attend, client):
    printed = attend("multi_head", "--describe")
    assert "\noutputs on request\n  entropy [" in printed
    described = client.get("/v1/attention/multi_head").json()
    for one in (*described["inputs"], *described["parameters"], *described["outputs"]):
        assert f"\n  {one['name']} " in printed
        assert one["description"] in printed


def test_help_names_every_block_input(attend, client):
    """Flags of their own for what the blocks take; ``--tensor`` and ``--set`` are for your own and learned matrices."""
    printed = attend("--help")
    for line in client.get("/v1/attention").json()["blocks"]:
        described = client.get(f"/v1/attention/{line['block']}").json()
        for one in (*described["inputs"], *described["parameters"]):
            is_learned = one["name"].endswith(("_weight", "_bias")) and one["name"] != "attn_bias"
            assert is_learned or re.search(f"--{one['name'].replace('_', '-')}[ ,]", printed), one["name"]


@pytest.fixture
def bad_files(tmp_path):
    """The flags of good tensors; files that are damaged, or hold something else, lie beside them."""
    files = written(tmp_path, "npy", sdpa())
    (tmp_path / "cut.npy").write_bytes((tmp_path / "query.npy").read_bytes()[:150])
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "cut.safetensors").write_bytes(b'\x05\0\0\0\0\0\0\0{"a":1}')
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "two.json").write_text('{"a": [1], "b": [1]}')
    (tmp_path / "odd.json").write_text('{"query": {"shape": [2]}}')
    (tmp_path / "words.json").write_text(json.dumps(["word"] * 16))
    np.save(tmp_path / "pickled.npy", np.array([{}]), allow_pickle=True)
    np.save(tmp_path / "wide.npy", np.ones((7, 9)))
    np.save(tmp_path / "int.npy", np.indices((5, 7)).sum(axis=0) % 2)
    return files


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--query cut.npy", "--query cut.npy: the file is damaged: "),
        ("--query cut.npz", "--query cut.npz: the file is damaged: "),
        ("--query cut.safetensors", "--query cut.safetensors: .*[Hh]eader"),
        ("--query pickled.npy", "--query pickled.npy: Object arrays .*allow_pickle"),
        ("--query odd.json", '--query odd.json: expected "shape" and "data"'),
        ("--query two.json", "--query two.json: has no 'query'; available: a, b"),
        ("--request list.json", "--request list.json: expected named tensors"),
        ("--key wide.npy", r"--key: expected axis 1 \(d_k\) to be 8, as in query, got 9 \(shape"),
        ("--attn-mask int.npy --additive-mask", r"--attn-mask: expected booleans \(true = may attend\) or floats"),
        ("--heads 3", "--heads: expected indices from -1 to 0"),
        ("--reduce-layers mean", "--reduce-layers"),
        ("--layers no-such-file", "--layers no-such-file"),
        ('--labels ["a"] --queries 4 --show', "--labels: expected one for each query, got 1, but query 4 is selected"),
        ("--set bandwidth=1", "--bandwidth: unknown field"),
        ("--outputs all", "--outputs: unknown output 'all'"),
        ("--weights-top-k 99", "--weights-top-k: expected at most 7"),
        ("--out both.npy", "both.npy: .npy takes only one array, got output, weights"),
        ("--out no/out.npz", "no/out.npz: No such file"),
        ("--show --labels words.json", "--labels: expected 5, one for each of the queries, got 16"),
        ("--show --key-labels words.json", "--labels: expected 7, one for each of the keys, got 16"),
        ("--show --labels list.json", "--labels list.json: expected a JSON list of texts"),
        ("--plot no/plot.png", "--plot no/plot.png: No such file"),
        ("--url http://[", "--url: expected a URL such as"),
    ],
)
def test_what_is_wrong_names_the_argument(command, bad_files, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, printed, wrong = command("run", SDPA, *bad_files, *arguments.split())
    assert (status, printed) == (2, "")
    assert re.match(f"heed run: .*{message}", wrong), wrong
    assert "Traceback" not in wrong


def test_an_unknown_block_and_a_server_that_is_down(command, closed_address):
    status, _, wrong = command("run", "none", "--query", "[[1]]")
    assert (status, "none" in wrong) == (2, True)
    assert command("run", SDPA, "--query", "[[1]]", "--url", closed_address)[0] == 1


@pytest.mark.parametrize("form", ["lists", "flat"])
def test_masks(attend, command, tmp_path, form):
    """In JSON null is -infinity; 0 and 1 are refused unless they are meant."""
    tensors = written(tmp_path, "npy", sdpa())
    bits = np.indices((5, 7)).sum(axis=0) % 2

    def flags(words):
        named = np.array(words, object)[bits]
        mask = named.tolist() if form == "lists" else {"shape": bits.shape, "data": named.ravel().tolist()}
        (tmp_path / "mask.json").write_text(json.dumps(mask))
        return SDPA, *tensors, "--attn-mask", tmp_path / "mask.json", "--outputs", "weights"

    for zero, one in ((0, 1), (0.0, 1.0)):
        status, _, error = command("run", *flags([zero, one]))
        assert (status, "--attn-mask: contains only 0 and 1" in error) == (2, True)
        attend(*flags([zero, one]), "--additive-mask")
    assert attend(*flags([0, None])) == attend(*flags([0.0, None])) == attend(*flags([True, False]))


@pytest.fixture
def request_file(tmp_path):
    inputs = {name: array.tolist() for name, array in sdpa(2, 3, m=6, n=6).items()}
    (tmp_path / "request.json").write_text(json.dumps(inputs))
    (tmp_path / "labels.json").write_text(json.dumps(WORDS))
    return ["--request", tmp_path / "request.json"]


FLAGS = {
    "selection": (["--heads", "0,2", "--queries=-1"], {"heads": [0, 2], "queries": -1}),
    "mean": (["--reduce-heads", "mean"], {"reduce_heads": "mean"}),
    "pool": (["--weights-pool", "2", "--weights-pool-by", "max"], {"weights_pool": 2, "weights_pool_by": "max"}),
    "decimals": (["--decimals", "3"], {"decimals": 3}),
    "uint8": (["--weights-dtype", "uint8"], {"weights_dtype": "uint8"}),
}


@pytest.mark.parametrize(("flags", "options"), FLAGS.values(), ids=FLAGS)
def test_flags(attend, sync_heed, request_file, flags, options):
    expected = sync_heed.attend(SDPA, **sdpa(2, 3, m=6, n=6), **options).weights
    np.testing.assert_array_equal(numbers(attend(SDPA, *request_file, *flags))["weights"], expected)


@pytest.mark.parametrize("layers", ["1", "-1", "1:", "[1]", "FILE"])
def test_layers_are_a_selection_or_a_file(attend, tmp_path, layers):
    np.save(tmp_path / "layers.npy", np.array([1]))
    layers = str(tmp_path / "layers.npy") if layers == "FILE" else layers
    weights = numbers(attend(*IDS, f"--layers={layers}", "--reduce-layers", "max"))["weights"]
    np.testing.assert_array_equal(weights, numbers(attend(*IDS))["weights"][1])


@pytest.mark.parametrize(
    ("flags", "rows"),
    [
        (["--labels", json.dumps(WORDS), "--queries", "4,0:2", "--heads", "1", "--at", "0,0"], ["w4", "w0", "w1"]),
        (["--queries", "4,5", "--reduce-heads", "mean", "--at", "1"], ["4", "5"]),
    ],
    ids=["words", "numbers"],
)
def test_the_rows_of_a_heat_map_are_the_selected_queries(attend, request_file, flags, rows):
    printed = attend(SDPA, *request_file, *flags, "--show")
    assert [line.split()[0] for line in printed.splitlines()][-len(rows) :] == rows


def test_a_page_of_pooled_weights(command, tmp_path, request_file):
    html = tmp_path / "page.html"
    flags = ["--labels", tmp_path / "labels.json", "--weights-pool", "4", "--weights-dtype", "float16", "--html", html]
    assert command("run", SDPA, *request_file, *flags)[0] == 0
    data = page_data(html.read_text())
    assert data["shape"] == [2, 3, 4, 4]
    assert [label["text"] for label in data["rows"]] == ["w0", "w1…w2", "w3", "w4…w5"]
    assert data["columns"] is None  # the same tokens


def test_labels():
    assert _select(WORDS, "4:,0") == ["w4", "w5", "w0"]
    assert _select(WORDS, [-1, 2]) == ["w5", "w2"]
    assert _select(WORDS, 3) == ["w3"]
    assert _pool(WORDS, 6) == WORDS
    assert _pool(WORDS, 1) == ["w0…w5"]


def test_a_memory_is_stored_listed_queried_and_deleted(command, attend, tmp_path):
    flags = written(tmp_path, "npy", sdpa(1, 2))
    status, printed, wrong = command("memory", "store", *flags[2:], "--ttl-seconds", 60)
    assert (status, wrong) == (0, "")
    id = printed.strip()
    assert f"{id} - float32 [1, 2, 7, 8] 616 bytes\n" in command("memory", "list")[1]
    assert attend(SDPA, *flags[:2], "--memory", id) == attend(SDPA, *flags)
    assert command("memory", "delete", id) == (0, f"deleted {id}\n", "")
    status, printed, wrong = command("memory", "list")
    assert (status, id in printed, wrong) == (0, False, "")
    status, _, wrong = command("memory", "delete", id)
    assert (status, id in wrong) == (2, True)


def test_what_is_neither_a_file_nor_an_id(command, tmp_path):
    status, _, wrong = command("run", SDPA, "--query", "[[1.0]]", "--memory", "abc")
    advice = "`heed memory list` prints the ids of the server"
    assert (status, wrong) == (2, f"heed run: --memory abc: is neither a file nor the id of a memory; {advice}\n")


def test_mistakes_with_a_memory(command, monkeypatch, closed_address):
    status, _, wrong = command("memory", "store", "--key", "[[1, 2]]")
    assert (status, wrong) == (2, "heed memory: 422 Unprocessable Entity: value: missing (required)\n")
    monkeypatch.setenv("HEED_URL", closed_address)
    assert command("memory", "list")[0] == 1
