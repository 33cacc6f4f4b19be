"""Memories through the client, sync and async: equal to the stateless calls, sent once, deleted in the end."""

import asyncio

import numpy as np
import pytest

import heed_client
import heed_client.memories.calls
from tests.support.client_calls import SDPA, V1, drawn, sdpa

MEMORIES = "/v1/memories"


def stored(leading=(1, 2), n=7):
    inputs = sdpa(*leading, n=n)
    return inputs.pop("query"), inputs


QUERY, ROWS = stored()
MORE, LAST = stored(n=4)[1], stored(n=1)[1]
PLAIN = stored(())[1]


def same(answer, expected):
    assert list(answer) == list(expected)
    for name, array in answer.items():
        np.testing.assert_array_equal(array, expected[name], strict=True)


def joined(*parts):
    return {name: np.concatenate([part[name] for part in parts], axis=-2) for name in parts[0]}


@pytest.mark.parametrize("leading", [(), (1,), (2, 3)])
@pytest.mark.parametrize("options", [{}, {"is_causal": True, "softcap": 2.0}, {"weights_top_k": 3}])
def test_a_query_equals_the_stateless_call(heed, leading, options):
    query, rows = stored(leading)
    with heed.memory(**rows) as memory:
        answer = memory.query(query, **options)
    expected = heed.attend(SDPA, query=query, **rows, **options)
    if "weights_top_k" in options:
        answer, expected = answer.weights._asdict(), expected.weights._asdict()
    same(answer, expected)


@pytest.mark.parametrize("binary", [None, False])
def test_queries_send_no_keys(heed, binary):
    """In one request each, as bytes unless JSON is asked for."""
    heed.describe(SDPA)
    with heed.memory(**ROWS) as memory:
        heed.asked.clear()
        for _ in range(2):
            memory.query(QUERY, binary=binary)
    path = f"{V1}/{SDPA}" if binary is False else f"/v2/models/{SDPA}/infer"
    assert heed.asked == [f"POST {path}"] * 2 + [f"DELETE {MEMORIES}/{memory.id}"]


def test_the_end_of_with_deletes(heed):
    with heed.memory(**ROWS) as memory:
        assert memory.lengths == (7,)
        assert memory.bytes == sum(array.nbytes for array in ROWS.values())
        assert memory.id in [other.id for other in heed.memories()]
    with pytest.raises(heed_client.NotFound, match=memory.id):
        memory.query(QUERY)
    with heed.memory(**ROWS) as deleted:
        deleted.delete()
    with pytest.raises(KeyError, match="mine"), heed.memory(**ROWS) as memory:
        raise KeyError("mine")
    assert memory.id not in [other.id for other in heed.memories()]


def test_a_kept_memory_remains(heed):
    with heed.memory(**ROWS, keep=True, ttl_seconds=600) as memory:
        pass
    assert memory.description.expires > memory.description.created
    with heed.open_memory(memory.id) as opened:
        answer = opened.query(QUERY)
    same(heed.open_memory(memory.id).query(QUERY), answer)
    heed.open_memory(memory.id).delete()
    with pytest.raises(heed_client.NotFound):
        heed.open_memory(memory.id)


def test_append_and_step(heed):
    row = QUERY[..., :1, :]
    with heed.memory(**ROWS) as memory:
        memory.append(**MORE, at=7)
        assert memory.lengths == (11,)
        same(memory.query(QUERY), heed.attend(SDPA, query=QUERY, **joined(ROWS, MORE)))
        answer = memory.step(row, **LAST, at=11, is_causal=True)
        same(answer, heed.attend(SDPA, query=row, **joined(ROWS, MORE, LAST)))
        assert memory.lengths == (12,)
        with pytest.raises(heed_client.Conflict, match="length 11, got 12"):
            memory.step(row, **LAST, at=11)
        with pytest.raises(heed_client.Conflict, match="length 7, got 12"):
            memory.append(**MORE, at=7)
        heed.open_memory(memory.id).append(**LAST)
        assert memory.lengths == (12,)
        memory.refresh()
        assert memory.lengths == (13,)


def test_a_step_whose_output_overflows_is_sent_once(heed):
    huge = np.full((1, 8), 3e38, np.float32)
    heed.describe(SDPA)
    with heed.memory(**PLAIN) as memory:
        heed.asked.clear()
        with pytest.raises(heed_client.BadRequest, match="not finite"):
            memory.step(huge, huge, drawn(1, 3), outputs=["scores"])
    assert heed.asked == [f"POST /v2/models/{SDPA}/infer", f"DELETE {MEMORIES}/{memory.id}"]


@pytest.mark.parametrize(
    ("block", "name", "tokens", "options"),
    [
        ("grouped_query", "x", drawn(2, 9, 64), {"is_causal": True}),
        ("decoder", "input_ids", np.arange(18).reshape(2, 9), {}),
    ],
    ids=["floats", "token ids"],
)
def test_decoding_with_a_block(heed, block, name, tokens, options):
    tolerance = 2 * heed.describe(block).tolerance["output"]
    expected = heed.attend(block, **{name: tokens}, **options, outputs=["output"]).output
    with heed.memory(**{name: tokens[:, :5]}, block=block) as memory:
        memory.append(**{name: tokens[:, 5:6]})
        for place in range(6, 9):
            answer = memory.step(**{name: tokens[:, place : place + 1]}, **options, outputs=["output"])
            np.testing.assert_allclose(answer.output[:, 0], expected[:, place], rtol=0, atol=tolerance)
        assert (memory.block, memory.lengths) == (block, (9, 9))


def test_the_inputs_of_a_block_are_not_rounded(heed):
    """What is stored is half as precise, not what it is made of."""
    x = 1000 + drawn(1, 6, 64)
    exact = heed.attend("grouped_query", x=x, outputs=["present_key"]).present_key
    with heed.memory(x=x[:, :4], block="grouped_query", dtype="float16") as memory:
        memory.append(x=x[:, 4:])
        rounded = memory.step(x=x[:, :1], outputs=["present_key"]).present_key[:, :, :6]
    assert (np.abs(rounded - exact) <= 0.51 * np.spacing(np.abs(exact).astype(np.float16))).all()


def test_a_block_whose_input_is_called_memory(heed):
    block = heed.describe("cross_attention")
    x, memory = (drawn(1, 4, block.inputs[name].shape[-1]) for name in ("x", "memory"))
    with heed.memory(memory=memory, block="cross_attention") as kept:
        same(kept.query(x=x), heed.attend("cross_attention", x=x, memory=memory))


@pytest.mark.parametrize("dtype", ["float32", np.float16])
def test_large_keys_are_sent_in_parts(heed, dtype, monkeypatch):
    query, rows = stored((2, 3), n=100)
    lengths = [100, 37]
    monkeypatch.setattr(heed_client.memories.calls, "PART_BYTES", 6000)
    with heed.memory(**rows, dtype=dtype, nonpad_kv_seqlen=lengths) as memory:
        sent = [*heed.asked]
        assert memory.lengths == (100, 37)
        answer = memory.query(query)
    assert sent == [f"POST {MEMORIES}"] + [f"POST {MEMORIES}/{memory.id}/append"] * (len(sent) - 1)
    assert len(sent) >= 100 * 2 * 3 * 11 * 2 // 6000
    rounded = {name: array.astype(dtype).astype(np.float32) for name, array in rows.items()}
    same(answer, heed.attend(SDPA, query=query, **rounded, nonpad_kv_seqlen=lengths))


def test_parts_become_smaller_until_the_server_takes_them(shared_server, two_blocks, connect):
    """It takes bodies of 10,000 bytes; nothing remains of a memory for which there is no room."""
    heed = connect(shared_server(two_blocks, "--max-body-bytes", "10000", "--memories-bytes", "200000").url)
    query, rows = stored(n=200)
    with heed.memory(**rows) as memory:
        assert memory.query(query).weights.shape == (1, 2, 5, 200)
        memory.append(**rows, at=200)
        assert memory.lengths == (400,)
    with pytest.raises(heed_client.ServerError, match=r"^507 "):
        heed.memory(**stored(n=2000)[1])
    assert heed.memories() == []


@pytest.mark.parametrize(
    ("leading", "lengths"), [((), None), ((), [5]), ((2,), None), ((2,), [7, 3]), ((2, 3), None), ((2, 3), [7, 3])]
)
def test_equal_keys_are_sent_once(heed, leading, lengths):
    """The second time without the numbers, and not after something was appended."""
    rows = {**stored(leading)[1], "nonpad_kv_seqlen": lengths}
    first = heed.memory(**rows, reuse=True)
    with heed.memory(**rows, reuse=True) as second:
        assert second.id == first.id
    assert heed.asked.count(f"POST {MEMORIES}") == 3
    with heed.memory(**rows) as another:
        assert another.id != first.id
    first.append(**stored(leading)[1])
    with heed.memory(**rows, reuse=True) as third:
        assert third.id != first.id
    first.delete()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": None}, "^422 .*: value: "),
        ({"key": np.full((7, 8), np.nan)}, "^422 .*: key: "),
        ({"kee": drawn(7, 8)}, "^400 .*: kee: "),
        ({"ttl_seconds": 0}, "^422 .*: ttl_seconds: "),
        ({"nonpad_kv_seqlen": [8]}, "^nonpad_kv_seqlen: expected numbers from 0 to 7"),
        ({"key": [["a"]]}, "^key: "),
        ({"x": drawn(3, 64), "key": None, "value": None, "block": "grouped_query", "reuse": True}, "^reuse: "),
    ],
    ids=lambda given: ", ".join(given) if isinstance(given, dict) else "",
)
def test_what_is_wrong(heed, change, message):
    """What is no tensor, or does not go together, is not sent."""
    with pytest.raises((heed_client.BadRequest, ValueError, TypeError), match=message) as caught:
        heed.memory(**PLAIN | change)
    assert bool(heed.asked) == isinstance(caught.value, heed_client.BadRequest)


def test_async_with(client):
    async def use():
        async with heed_client.AsyncClient(str(client.base_url)) as heed:
            async with heed.memory(**ROWS) as memory:
                answer = await memory.query(QUERY)
            return answer, memory.id in [other.id for other in await heed.memories()]

    answer, remains = asyncio.run(use())
    assert answer.weights.shape == (1, 2, 5, 7)
    assert not remains
