"""Requests that are nearly right: each gets its own answer or its own error, and the server stays up."""

import json
from collections.abc import Iterator

import httpx
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.server import Served, served
from benchmarks.soak.fuzz import FLAGS, Fuzzer, fuzz_connections
from benchmarks.soak.wire import ATTEND, INFER

MUTANTS = 400


@pytest.fixture(scope="module")
def server(repository) -> Iterator[Served]:
    with served(repository, *FLAGS) as server:
        yield server
        assert server.check().passed, server.log()


@pytest.mark.parametrize("seed", [1])
def test_mutants(server, seed):
    fuzzer = Fuzzer(server.port)
    uvloop.run(fuzz_connections(fuzzer, seed, MUTANTS))
    assert not fuzzer.wrong
    assert fuzzer.mutated == MUTANTS
    assert fuzzer.statuses[200] > MUTANTS / 2
    assert fuzzer.statuses[400] > MUTANTS / 4


NUMBERS = st.one_of(
    st.floats(width=32),
    st.integers(-5, 5),
    st.sampled_from([1e39, -1e400, 2**63, 2**64, True, None, "1", "NaN", {}, []]),
)
LISTS = st.recursive(st.lists(NUMBERS, max_size=4), lambda rows: st.lists(rows, max_size=3), max_leaves=12)
GOOD = st.sampled_from([[[1.0, 2.0]], [[[1.0, 2.0]] * 2], [[1, 2], [3, 4]]])
AXES = st.lists(
    st.one_of(st.integers(-1, 3), st.sampled_from([2**31, 2**32, 2**62, 2**64, 1.5, "1", None])), max_size=5
)
CODED = st.fixed_dictionaries(
    {"shape": AXES},
    optional={
        "data": LISTS,
        "dtype": st.sampled_from(["float32", "int64", "bool", "float8", 7]),
        "base64": st.one_of(st.binary(max_size=16).map(bytes.hex), st.sampled_from(["AACAPw==", "AACAPw=", "\ud800"])),
    },
)
TENSORS = st.one_of(GOOD, LISTS, CODED, NUMBERS)
OPTIONS = st.one_of(NUMBERS, TENSORS, st.text(max_size=3), st.lists(st.sampled_from(["output", "weights", "x"])))
NATIVE = st.fixed_dictionaries(
    dict.fromkeys(["query", "key", "value"], TENSORS),
    optional=dict.fromkeys(
        ["attn_mask", "is_causal", "scale", "outputs", "nonpad_kv_seqlen", "weights_top_k", "x"], OPTIONS
    ),
)
DATATYPES = st.sampled_from(["FP32", "FP32", "FP32", "INT64", "BYTES", "FP99", None])
PARAMETERS = st.dictionaries(
    st.sampled_from(["binary_data_size", "timeout", "priority", "is_causal", "scale", "x"]), OPTIONS
)


def input_named(name: str) -> st.SearchStrategy:
    fields = {"name": st.just(name), "shape": AXES, "datatype": DATATYPES}
    good = st.just({"name": name, "shape": [1, 1, 1, 2], "datatype": "FP32", "data": [1, 2]})
    return st.one_of(good, st.fixed_dictionaries(fields, optional={"data": TENSORS, "parameters": PARAMETERS}))


V2 = st.fixed_dictionaries(
    {
        "inputs": st.one_of(
            st.tuples(*map(input_named, ["query", "key", "value"])), st.lists(input_named("x"), max_size=3)
        )
    },
    optional={"id": st.text(max_size=3), "parameters": PARAMETERS, "outputs": st.lists(OPTIONS, max_size=2)},
)


@pytest.mark.parametrize(("path", "documents"), [(ATTEND, NATIVE), (INFER, V2)], ids=["native", "v2"])
def test_documents(server, path, documents):
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=20) as client:

        @settings(max_examples=150)
        @given(document=documents)
        def answered(document):
            headers = {"Content-Type": "application/json", "X-Request-Timeout": "20"}
            answer = client.post(path, content=json.dumps(document).encode(), headers=headers)
            assert answer.status_code in (200, 400, 413, 422), (document, answer.text)
            assert ("error" if path == INFER else "detail") in answer.json() or answer.status_code == 200

        answered()
