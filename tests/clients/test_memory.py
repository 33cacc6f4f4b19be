"""Memories through the client, sync and async: equal to the stateless calls, sent once, deleted in the end."""

import asyncio

import numpy as np
import pytest

import heed_client
import heed_client.memories.calls
from tests.support.client_calls import SDPA, V1, drawn, sdpa
from tests.support.server import serving

MEMORIES = "/v1/memories"


def same(found, expected, tolerance=0.0):
    assert list(found) == list(expected)
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=tolerance, strict=True)


def stored(leading=(1, 2), n=7):
    inputs = sdpa(*leading, n=n)
    return inputs.pop("query"), inputs


def joined(*parts):
    return {name: np.concatenate([part[name] for part in parts], axis=-2) for name in parts[0]}


@pytest.mark.parametrize("leading", [(), (1,), (2, 3)])
@pytest.mark.parametrize("options", [{}, {"is_causal": True, "softcap": 2.0}, {"weights_top_k": 3}])
def test_a_query_equals_the_stateless_call(heed, leading, options):
    query, rows = stored(leading)
    with heed.memory(**rows) as memory:
        found = memory.query(query, **options)
    expected = heed.attend(SDPA, query=query, **rows, **options)
    if "weights_top_k" in options:
        np.testing.assert_array_equal(found.weights.indices, expected.weights.indices)
        np.testing.assert_array_equal(found.weights.values, expected.weights.values)
    else:
        same(found, expected)


@pytest.mark.parametrize("binary", [None, False])
def test_queries_send_no_keys(heed, binary):
    """In one request each, as bytes unless JSON is asked for."""
    query, rows = stored()
    heed.describe(SDPA)
    with heed.memory(**rows) as memory:
        heed.asked.clear()
        for _ in range(2):
            memory.query(query, binary=binary)
    path = f"{V1}/{SDPA}" if binary is False else f"/v2/models/{SDPA}/infer"
    assert heed.asked == [f"POST {path}"] * 2 + [f"DELETE {MEMORIES}/{memory.id}"]


def test_the_end_of_with_deletes(heed):
    query, rows = stored()
    with heed.memory(**rows) as memory:
        assert memory.lengths == (7,)
        assert memory.bytes == sum(array.nbytes for array in rows.values())
        assert memory.id in [other.id for other in heed.memories()]
    with pytest.raises(heed_client.NotFound, match=memory.id):
        memory.query(query)
    with heed.memory(**rows) as deleted:
        deleted.delete()
    with pytest.raises(KeyError, match="mine"), heed.memory(**rows) as memory:
        raise KeyError("mine")
    assert memory.id not in [other.id for other in heed.memories()]


def test_a_kept_memory_remains(heed):
    query, rows = stored()
    with heed.memory(**rows, keep=True) as memory:
        pass
    with heed.open_memory(memory.id) as opened:
        found = opened.query(query)
    same(heed.open_memory(memory.id).query(query), found)
    heed.open_memory(memory.id).delete()
    with pytest.raises(heed_client.NotFound):
        heed.open_memory(memory.id)
    plain = heed.memory(**rows, ttl_seconds=600)
    assert plain.description.expires > plain.description.created
    plain.delete()


def test_append_and_step(heed):
    query, rows = stored()
    more, last = stored(n=4)[1], stored(n=1)[1]
    with heed.memory(**rows) as memory:
        memory.append(**more, at=7)
        assert memory.lengths == (11,)
        same(memory.query(query), heed.attend(SDPA, query=query, **joined(rows, more)))
        found = memory.step(query[..., :1, :], **last, at=11, is_causal=True)
        same(found, heed.attend(SDPA, query=query[..., :1, :], **joined(rows, more, last)))
        assert memory.lengths == (12,)
        with pytest.raises(heed_client.Conflict, match="11 keys, got 12"):
            memory.step(query[..., :1, :], **last, at=11)
        with pytest.raises(heed_client.Conflict, match="7 keys, got 12"):
            memory.append(**more, at=7)
        heed.open_memory(memory.id).append(**last)
        assert memory.lengths == (12,)
        memory.refresh()
        assert memory.lengths == (13,)


def test_a_step_whose_output_overflows_is_sent_once(heed):
    huge = np.full((1, 8), 3e38, np.float32)
    _, rows = stored(())
    with heed.memory(**rows) as memory:
        heed.asked.clear()
        with pytest.raises(heed_client.BadRequest, match="not finite"):
            memory.step(huge, huge, drawn(1, 3), outputs=["scores"])
        assert [asked for asked in heed.asked if "POST" in asked] == [f"POST /v2/models/{SDPA}/infer"]


@pytest.mark.parametrize("block", ["grouped_query", "multi_query", "multi_head_self_attention"])
def test_decoding_with_a_block(heed, block):
    description = heed.describe(block)
    x = drawn(2, 9, description.inputs["x"].shape[-1])
    expected = heed.attend(block, x=x, is_causal=True)
    with heed.memory(x=x[:, :5], block=block) as memory:
        memory.append(x=x[:, 5:6])
        for token in range(6, 9):
            found = memory.step(x=x[:, token : token + 1], is_causal=True)
            tolerance = 2 * description.tolerance["output"]
            np.testing.assert_allclose(found.output[:, 0], expected.output[:, token], rtol=0, atol=tolerance)
        assert (memory.block, memory.lengths) == (block, (9, 9))


def test_the_inputs_of_a_block_are_not_rounded(heed):
    """What is stored is half as precise, not what it is made of."""
    x = 1000 + drawn(1, 6, 64)
    exact = heed.attend("grouped_query", x=x, outputs=["present_key"]).present_key
    with heed.memory(x=x[:, :4], block="grouped_query", dtype="float16") as memory:
        memory.append(x=x[:, 4:])
        found = memory.step(x=x[:, :1], outputs=["present_key"]).present_key[:, :, :6]
    assert (np.abs(found - exact) <= 0.51 * np.spacing(np.abs(exact).astype(np.float16))).all()


def test_decoding_of_tokens(heed):
    ids = [[3, 1, 4, 1, 5]]
    expected = heed.attend("decoder", input_ids=ids, outputs=["output"]).output
    with heed.memory(input_ids=[ids[0][:3]], block="decoder") as memory:
        for token in (3, 4):
            found = memory.step(input_ids=[[ids[0][token]]], outputs=["output"]).output
            tolerance = 2 * heed.describe("decoder").tolerance["output"]
            np.testing.assert_allclose(found[:, 0], expected[:, token], rtol=0, atol=tolerance)
        assert memory.lengths == (5,)


def test_a_block_whose_input_is_called_memory(heed):
    block = heed.describe("cross_attention")
    x, memory = (drawn(1, 4, block.inputs[name].shape[-1]) for name in ("x", "memory"))
    with heed.memory(memory=memory, block="cross_attention") as kept:
        same(kept.query(x=x), heed.attend("cross_attention", x=x, memory=memory))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_large_keys_are_sent_in_parts(heed, dtype, monkeypatch):
    query, rows = stored((2, 3), n=100)
    lengths = [100, 37]
    monkeypatch.setattr(heed_client.memories.calls, "PART_BYTES", 6000)
    with heed.memory(**rows, dtype=dtype, nonpad_kv_seqlen=lengths) as memory:
        posts = [asked for asked in heed.asked if "POST" in asked]
        assert memory.lengths == (100, 37)
        found = memory.query(query)
    assert posts == [f"POST {MEMORIES}"] + [f"POST {MEMORIES}/{memory.id}/append"] * (len(posts) - 1)
    assert len(posts) >= 100 * 2 * 3 * 11 * 2 // 6000
    rounded = {name: array.astype(dtype).astype(np.float32) for name, array in rows.items()}
    same(found, heed.attend(SDPA, query=query, **rounded, nonpad_kv_seqlen=lengths))


@pytest.fixture
def limited(two_blocks, connect):
    """A client of a server that takes bodies of 10,000 bytes, and memories of 100,000."""
    with serving(two_blocks, "--max-body-bytes", "10000", "--memories-bytes", "100000") as server:
        yield connect(server.base_url)


def test_parts_become_smaller_until_the_server_takes_them(limited):
    query, rows = stored(n=200)
    with limited.memory(**rows) as memory:
        assert memory.lengths == (200,)
        first = memory.query(query)
        memory.append(**rows, at=200)
        assert memory.lengths == (400,)
    assert first.weights.shape == (1, 2, 5, 200)


def test_nothing_remains_of_a_memory_for_which_there_is_no_room(limited):
    _, rows = stored(n=2000)
    with pytest.raises(heed_client.ServerError) as caught:
        limited.memory(**rows)
    assert caught.value.status == 507
    assert limited.memories() == []


@pytest.mark.parametrize("lengths", [None, [7, 3]])
@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
def test_equal_keys_are_sent_once(heed, leading, lengths):
    """The second time without the numbers, and not after something was appended."""
    if not leading and lengths:
        lengths = [5]
    _, rows = stored(leading)
    first = heed.memory(**rows, nonpad_kv_seqlen=lengths, reuse=True)
    with heed.memory(**rows, nonpad_kv_seqlen=lengths, reuse=True) as second:
        assert second.id == first.id
    assert heed.asked.count(f"POST {MEMORIES}") == 3
    assert heed.memory(**rows, nonpad_kv_seqlen=lengths).id != first.id
    first.append(**rows)
    with heed.memory(**rows, nonpad_kv_seqlen=lengths, reuse=True) as third:
        assert third.id != first.id
    for memory in heed.memories():
        memory.delete()


def test_the_keys_of_a_block_cannot_be_found(heed):
    with pytest.raises(ValueError, match="reuse"):
        heed.memory(x=drawn(3, 64), block="grouped_query", reuse=True)
    assert heed.asked == []


@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({"value": drawn(6, 3)}, 422, "value"),
        ({"value": None}, 422, "value"),
        ({"key": np.full((7, 8), np.nan)}, 422, "key"),
        ({"kee": drawn(7, 8)}, 400, "kee"),
        ({"block": "additive"}, 422, "block"),
        ({"ttl_seconds": 0}, 422, "ttl_seconds"),
        ({"dtype": "float64"}, 422, "dtype"),
    ],
)
def test_what_is_wrong(heed, change, status, field):
    _, rows = stored(())
    with pytest.raises(heed_client.BadRequest) as caught:
        heed.memory(**rows | change)
    assert (caught.value.status, caught.value.field) == (status, field)


def test_lengths_beyond_the_keys_are_not_sent(heed):
    _, rows = stored(())
    with pytest.raises(ValueError, match="nonpad_kv_seqlen: expected numbers from 0 to 7"):
        heed.memory(**rows, nonpad_kv_seqlen=[8])
    with pytest.raises(TypeError, match=r"^key: "):
        heed.memory(key=[["a"]], value=rows["value"])


def test_async_with(client):
    query, rows = stored()

    async def use():
        async with heed_client.AsyncClient(str(client.base_url)) as heed:
            async with heed.memory(**rows) as memory:
                answer = await memory.query(query)
            kept = await heed.memory(**rows)
            await kept.delete()
            return answer, [other.id for other in await heed.memories()]

    answer, left = asyncio.run(use())
    assert answer.weights.shape == (1, 2, 5, 7)
    assert left == []
