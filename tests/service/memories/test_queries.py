"""A request that names a memory is answered as one that has its keys and values."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.catalogue import BLOCKS
from models.examples import examples
from service.memories.store import MemoryStore
from service.memories.streaming import StreamingSession
from tests.support.application import running
from tests.support.attending import assert_close, attend, coded, post
from tests.support.memories import append, lengths, normal, send, store
from tests.support.v2 import infer, tensor

SDPA = "scaled_dot_product"
KEY_VALUE = ("key", "value")
ROW = [[1, 0]]
STORABLE = [
    pytest.param(name, marks=[] if name in ("additive", SDPA) else pytest.mark.extended)
    for name, block in BLOCKS.items()
    if {*KEY_VALUE} <= block.inputs.keys()
]
PROJECTED = {  # block -> what becomes keys, what asks
    "multi_head": ({"key": (2, 7, 64), "value": (2, 7, 64)}, {"query": (2, 3, 64)}),
    "projected": ({"key": (2, 7, 20), "value": (2, 7, 28)}, {"query": (2, 3, 24)}),
    "cross_attention": ({"memory": (2, 7, 24)}, {"x": (2, 3, 32)}),
}
TO_ITSELF = {
    "self_attention": normal(2, 9, 32),
    **dict.fromkeys(("multi_head_self_attention", "grouped_query", "multi_query"), normal(2, 9, 64)),
    "decoder": np.array([[3, 1, 4, 1, 5, 9, 2, 6]]),
}


def _infer(client, tensors, **parameters):
    inputs = [tensor(name, array) for name, array in tensors.items()]
    return infer(client, SDPA, {"inputs": inputs, "parameters": parameters})


@pytest.mark.parametrize("name", STORABLE)
def test_every_option_and_output(client, name):
    every = list(BLOCKS[name].outputs)
    for example, inputs in examples(BLOCKS[name], ("distinct", "one_query")):
        body = inputs | ({"attn_mask": coded(inputs["attn_mask"])} if "attn_mask" in inputs else {})
        memory = store(client, key=body.pop("key"), value=body.pop("value"))
        found = attend(client, name, **body, memory=memory["id"], outputs=every)
        assert_close(name, found, inputs), example
        assert client.delete(f"/v1/memories/{memory['id']}").status_code == 204


def test_keys_are_walked_where_each_row_has_many(two_blocks, monkeypatch):
    """Of 64 rows of 64 keys the block's own graph computes all at once."""
    walked, run = [], StreamingSession.run

    def walk(session, inputs, *arguments):
        walked.append(inputs["key"].shape)
        return run(session, inputs, *arguments)

    monkeypatch.setattr(StreamingSession, "run", walk)
    with running(two_blocks) as client:
        for key in (normal(64, 1, 64, 1), normal(1, 64, 64, 1), normal(1, 1, 4096, 1), normal(16, 1, 256, 1)):
            query, memory = normal(*key.shape[:2], 1, 1), store(client, key=key, value=key)["id"]
            found = attend(client, query=query, memory=memory, outputs=["output"])
            expected = attend(client, query=query, key=key, value=key, outputs=["output"])
            np.testing.assert_allclose(found["output"], expected["output"], rtol=1e-4, atol=1e-5)
    assert walked == [(1, 1, 4096, 1), (16, 1, 256, 1)]


@pytest.mark.parametrize("name", PROJECTED)
def test_projections_are_stored(client, name):
    stored, asking = ({part: normal(*shape) for part, shape in parts.items()} for parts in PROJECTED[name])
    memory = store(client, block=name, **stored)["id"]
    for options in ({}, {"softcap": 2.0}, {"attn_mask": np.arange(7) < 5}, {"outputs": ["output", "scores", "lse"]}):
        expected = attend(client, name, **asking, **stored, **options)
        found = attend(client, name, **asking, memory=memory, **options)
        assert found.keys() == expected.keys()
        for output in found:
            np.testing.assert_array_equal(found[output], expected[output])
    longer = {part: normal(2, 3, array.shape[2], seed=1) for part, array in stored.items()}
    assert append(client, memory, **longer).status_code == 200
    whole = {part: np.concatenate([array, longer[part]], 1) for part, array in stored.items()}
    expected = attend(client, name, **asking, **whole)
    found = attend(client, name, **asking, memory=memory)
    np.testing.assert_allclose(found["output"], expected["output"], atol=1e-6)


@pytest.mark.parametrize("name", TO_ITSELF)
def test_decoding_step_by_step_equals_the_whole(client, name):
    sequence = TO_ITSELF[name]
    field, causal = ("input_ids", {}) if name == "decoder" else ("x", {"is_causal": True})
    whole = attend(client, name, **{field: sequence}, **causal)
    memory = store(client, block=name, **{field: sequence[:, :2]})["id"]
    for place, at in ((2, {"at": 2}), (3, {})):
        assert append(client, memory, **{field: sequence[:, place : place + 1]}, **at).status_code == 200
    refused = append(client, memory, **{field: sequence[:, 4:5]}, at=3)
    assert (refused.status_code, refused.json()["field"]) == (409, "at")
    for place in range(4, sequence.shape[1]):
        step = {field: sequence[:, place : place + 1], "memory_append": True, "memory_at": place}
        found = attend(client, name, **step, memory=memory, **causal)
        np.testing.assert_allclose(found["output"][:, 0], whole["output"][:, place], atol=2e-6)
        np.testing.assert_allclose(found["weights"][..., 0, :], whole["weights"][..., place, : place + 1], atol=2e-6)
    assert set(lengths(client, memory)) == {sequence.shape[1]}


def test_a_step_that_overflows_appends_nothing(client):
    memory = store(client, key=np.full((1, 1, 2, 2), 3e38, np.float32), value=normal(1, 1, 2, 2))["id"]
    row = normal(1, 1, 1, 2)
    tensors, step = (
        {"query": np.full_like(row, 3e38), "key": row, "value": row},
        {"memory": memory, "memory_append": True},
    )
    assert post(client, SDPA, tensors | step).status_code == 422
    assert _infer(client, tensors, **step).status_code == 400
    assert lengths(client, memory) == [2]


@settings(max_examples=60)
@given(
    heads=st.tuples(*[st.integers(1, 3)] * 3),  # batch, kv_heads, and query heads of each
    parts=st.lists(st.integers(1, 40), min_size=1, max_size=5),  # keys that are stored, then appended
    widths=st.tuples(*[st.integers(1, 20)] * 3),  # d_k, d_v, and the number of queries
    dtype=st.sampled_from(["float32", "float16"]),
    ragged=st.booleans(),  # rows of the batch have different lengths
    causal=st.booleans(),
    step=st.booleans(),  # the query brings two more keys
    seed=st.integers(0, 2**32),
)
def test_any_splits_appends_types_and_lengths(client, heads, parts, widths, dtype, ragged, causal, step, seed):
    (batch, kv_heads, group), (d_k, d_v, m) = heads, widths
    rng = np.random.default_rng(seed)
    parts = [*parts, 2] if step else parts
    whole = {name: np.zeros((batch, kv_heads, sum(parts), d), np.float32) for name, d in (("key", d_k), ("value", d_v))}
    memory, total, query_fields = None, np.zeros(batch, np.int64), {}
    for place, part in enumerate(parts):
        is_step = step and place == len(parts) - 1
        counts = rng.integers(place == 0, part + 1, batch) if ragged and not is_step else np.full(batch, part)
        new = {name: rng.standard_normal((*x.shape[:2], part, x.shape[3])).astype(dtype) for name, x in whole.items()}
        for row, (start, count) in enumerate(zip(total, counts, strict=True)):
            for name, array in new.items():
                whole[name][row, :, start : start + count] = array[row, :, :count]
        total += counts
        fields = {**new, "nonpad_kv_seqlen": counts.tolist()}
        if is_step:
            query_fields = {name: array.astype(np.float32) for name, array in new.items()} | {"memory_append": True}
        elif memory is None:
            memory = store(client, dtype=dtype, **fields)["id"]
        else:
            assert append(client, memory, **fields).status_code == 200
    query = rng.standard_normal((batch, kv_heads * group, m, d_k), np.float32)
    found = attend(client, query=query, memory=memory, is_causal=causal, **query_fields)
    assert lengths(client, memory) == total.tolist()
    inputs = {name: array[:, :, : max(total)] for name, array in whole.items()}
    inputs |= {"query": query, "is_causal": np.asarray(causal)}
    if len(set(total)) > 1 or step:
        inputs["nonpad_kv_seqlen"] = total
    assert_close(SDPA, found, inputs)


def test_the_same_in_v2(client):
    query, key, value = normal(2, 6, 3, 8), normal(2, 2, 50, 8), normal(2, 2, 50, 5)
    memory = store(client, key=key, value=value)["id"]
    expected = _infer(client, {"query": query, "key": key, "value": value}).json()["outputs"]
    for _ in range(2):  # the second time its plan may be known
        assert _infer(client, {"query": query}, memory=memory).json()["outputs"] == expected
    selected = _infer(client, {"query": query}, memory=memory, weights_top_k=3, heads=1).json()["outputs"]
    assert {output["name"] for output in selected} >= {"weights_indices", "weights_values"}
    step = {"query": query, "key": key[:, :, :1], "value": value[:, :, :1]}
    steps = [_infer(client, step, memory=memory, memory_append=True, memory_at=50) for _ in range(2)]
    assert [step.status_code for step in steps] == [200, 409]
    assert "51" in steps[1].json()["error"]


def test_an_append_is_seen_by_the_next_query_with_the_same_plan(client):
    """The plan of a V2 request and of a native one are cached; the keys of a memory are not."""
    query, key = normal(1, 1, 1, 4), normal(1, 1, 3, 4)
    memory = store(client, key=key, value=key)["id"]
    for length in (3, 4, 5):
        assert attend(client, query=query, memory=memory)["weights"].shape[-1] == length
        weights = _infer(client, {"query": query}, memory=memory).json()["outputs"][1]
        assert weights["shape"][-1] == length
        append(client, memory, key=key[:, :, :1], value=key[:, :, :1])


REFUSED = {  # changes of a query of two keys; status, field
    "unknown": ({"memory": "x" * 24}, 404, "memory"),
    "at without append": ({"memory_at": 3}, 422, "memory_at"),
    "key beside it": ({"key": [[1, 0]]}, 422, "key"),
    "nothing to append": ({"memory_append": True}, 422, "key"),
    "other depth": ({"query": [[1.0, 0, 0]]}, 422, "key"),
    "other length": ({"key": ROW, "value": ROW, "memory_append": True, "memory_at": 9}, 409, "memory_at"),
    "fewer values": ({"key": [[1, 0], [0, 1]], "value": ROW, "memory_append": True}, 422, "value"),
}


@pytest.mark.parametrize(("change", "status", "field"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_queried_is_refused_and_changes_nothing(client, change, status, field):
    key = np.eye(2, dtype=np.float32)
    memory = store(client, key=key, value=key)["id"]
    response = post(client, SDPA, {"query": [[1.0, 0]], "memory": memory} | change)
    assert (response.status_code, response.json().get("field")) == (status, field), response.text
    assert lengths(client, memory) == [2]


@pytest.mark.parametrize("option", [{"memory_append": True}, {"memory_at": 3}], ids=["append", "at"])
def test_a_tensor_named_memory_is_none_to_append_to(client, option):
    response = post(client, "cross_attention", {"x": normal(1, 2, 32), "memory": normal(1, 7, 24), **option})
    assert (response.status_code, response.json()["field"]) == (422, next(iter(option))), response.text


def test_a_memory_without_keys_is_refused_until_some_are_appended(client):
    one = np.ones((1, 1, 1, 2), np.float32)
    memory = store(client, key=one, value=one, nonpad_kv_seqlen=[0])["id"]
    for outputs in (["output"], ["output", "lse", "scores"]):
        response = post(client, SDPA, {"query": one, "memory": memory, "outputs": outputs})
        assert (response.status_code, response.json()["field"]) == (422, "memory"), response.text
    found = attend(client, query=one, key=one, value=one, memory=memory, memory_append=True)
    np.testing.assert_array_equal(found["output"], one)


def test_a_memory_is_for_its_block(client):
    rows = normal(1, 2, 5, 64)
    plain = store(client, key=rows, value=rows)["id"]
    projected = store(client, block="multi_head", key=rows[0], value=rows[0])["id"]
    for block, memory, said in (
        ("multi_head", plain, "takes 3 axes"),
        ("grouped_query", plain, "takes no key and value"),
        ("projected", projected, "stored for block 'multi_head'"),
        (SDPA, projected, "stored for block 'multi_head'"),
    ):
        response = post(client, block, {"x" if block == "grouped_query" else "query": rows[0], "memory": memory})
        assert (response.status_code, said in response.json()["detail"]) == (422, True), response.text
    assert append(client, plain, key=normal(1, 3, 1, 64), value=normal(1, 3, 1, 64)).status_code == 422


UPLOADS = {  # changes of a key and a value of one number; status, field
    "no value": ({"value": None}, 422, "value"),
    "ragged": ({"key": [[1.0], [1, 2]]}, 422, "key"),
    "empty": ({"key": np.zeros((2, 0), "f"), "value": np.zeros((2, 1), "f")}, 422, "key"),
    "five axes": ({"key": [[[[[1.0]]]]], "value": [[[[[1.0]]]]]}, 422, "key"),
    "ttl": ({"ttl_seconds": 0}, 422, "ttl_seconds"),
    "list of ttl": ({"ttl_seconds": [[1]]}, 422, "ttl_seconds"),
    "lengths": ({"nonpad_kv_seqlen": [2]}, 422, "nonpad_kv_seqlen"),
    "past float16": ({"key": [[1e6]], "dtype": "float16"}, 422, "key"),
}


@pytest.mark.parametrize(("change", "status", "field"), UPLOADS.values(), ids=UPLOADS.keys())
def test_what_cannot_be_stored_is_refused(client, change, status, field):
    response = send(client, "/v1/memories", **{"key": [[1.0]], "value": [[1.0]]} | change)
    assert (response.status_code, response.json().get("field")) == (status, field), response.text


@pytest.mark.parametrize(("fields", "named"), [({}, "memory"), ({"memory_at": 1}, "memory_at")], ids=["none", "at"])
def test_a_step_that_another_one_overtook_names_the_length_it_expected(repository, monkeypatch, fields, named):
    appending = MemoryStore.appending

    def overtaken(self, stored, key, value, *arguments, **named):
        with appending(self, stored, key, value):
            pass
        return appending(self, stored, key, value, *arguments, **named)

    monkeypatch.setattr(MemoryStore, "appending", overtaken)
    with running(repository) as client:
        memory = store(client, key=ROW, value=ROW)["id"]
        body = {"query": ROW, "key": ROW, "value": ROW, "memory": memory, "memory_append": True, **fields}
        response = client.post(f"/v1/attention/{SDPA}", json=body)
    assert (response.status_code, response.json()["field"]) == (409, named)


def test_an_append_to_a_memory_of_another_length_names_at(client):
    memory = store(client, key=ROW, value=ROW)["id"]
    refused = append(client, memory, key=ROW, value=ROW, at=9)
    assert (refused.status_code, refused.json()["field"]) == (409, "at")
