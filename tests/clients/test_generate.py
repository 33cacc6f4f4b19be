"""``generate`` of both clients: what the server answers, as it comes or at once; errors, and loops that are left."""

import asyncio
import json
import socket
from threading import Thread

import httpx
import numpy as np
import pytest

from heed_client import AsyncClient, BadRequest, Client, NotFound, ServerError, TopK, Unreachable
from heed_client.generation.answer import Events
from service.base.errors import Invalid
from tests.support.generating import stepping
from tests.support.http_client import gauge
from tests.support.in_process import serving_in_process
from tests.support.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
TEXT = {"text": "the cat sat", "max_new_tokens": 12, "temperature": 1.5, "seed": 1, "ignore_eos": True}
IDS = {"input_ids": [5, 9, 14, 30], "ignore_eos": True}


@pytest.fixture(scope="session")
def url(generating, shared_server):
    return shared_server(generating / "models", "--workers", "1").url


@pytest.fixture
def heed(url, connect):
    return connect(url)


@pytest.fixture(scope="module")
def service(generating):
    with serving_in_process(generating / "models") as service:
        yield service


def answered(url, **body):
    """What the server answers to the same request without a client."""
    response = httpx.post(f"{url}/v1/generate/gpt", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_tokens_come_as_the_server_answers_them(heed, url):
    options = {"outputs": ["weights", "hidden_states", "logprobs"], "next_tokens": 3}
    expected = answered(url, **TEXT, **options)
    generation = heed.generate("gpt", **TEXT, **options)
    found = []
    for token in generation:
        found.append(token)
        assert generation.text == expected["text"][: token.offset[1]]
    for token, theirs in zip(found, expected["generated"], strict=True):
        for name in ("id", "token", "text", "logprob", "next_tokens"):
            assert getattr(token, name) == theirs[name]
        assert list(token.offset) == theirs["offset"]
        assert list(token.outputs) == options["outputs"]
        for name, array in token.outputs.items():
            np.testing.assert_array_equal(array, np.float32(theirs[name]), strict=True)
        assert token.weights is token.outputs["weights"]
    assert generation.generated == found
    for name in ("text", "finish_reason", "usage"):
        assert getattr(generation, name) == expected[name]
    assert 0 < generation.first_token_ms <= generation.total_ms
    assert generation.prompt.tokens == expected["tokens"]
    assert "because" in repr(generation)


@pytest.mark.parametrize("is_stream", [True, False])
def test_options_of_the_weights_are_those_of_other_calls(heed, is_stream):
    def first(**options):
        generation = heed.generate("gpt", **IDS, max_new_tokens=1, outputs="weights", **options)
        return next(iter(generation)) if is_stream else generation.result().generated[0]

    whole = first().weights
    assert whole.shape == (2, 4, 1, 4)
    np.testing.assert_array_equal(first(layers=1, heads=np.array([0, 2])).weights, whole[[1]][:, [0, 2]])
    np.testing.assert_allclose(first(reduce_heads="mean", reduce_layers="max").weights, whole.mean(1).max(0), 1e-6)
    largest = first(weights_top_k=2).weights
    assert isinstance(largest, TopK)
    np.testing.assert_array_equal(np.take_along_axis(whole, largest.indices, -1), largest.values)
    exact, levels = first(weights_dtype=np.uint8).weights, first(weights_dtype="uint8", quantized=True).weights
    assert exact.dtype == np.float32
    np.testing.assert_array_equal(levels.dequantized(), exact)
    assert np.abs(exact - whole).max() <= levels.scale / 2 + 1e-7


def test_a_list_of_prompts_is_answered_at_once(heed, url):
    body = {**TEXT, "text": ["the cat sat", "a dog"], "stop": ["where", 59]}
    expected = answered(url, **body, outputs=["entropy"])
    generation = heed.generate("gpt", **body, outputs="entropy").result()
    assert [[token.id for token in of] for of in generation.generated] == [
        [token["id"] for token in of] for of in expected["generated"]
    ]
    np.testing.assert_array_equal(
        generation.generated[1][0].entropy, np.float32(expected["generated"][1][0]["entropy"])
    )
    for name in ("text", "finish_reason", "usage"):
        assert getattr(generation, name) == expected[name]
    assert generation.prompt.tokens == expected["tokens"]
    assert generation.total_ms is None
    with pytest.raises(ValueError, match=r"^text: a loop takes one prompt; call result\(\) for a list"):
        list(heed.generate("gpt", **body))
    with pytest.raises(BadRequest, match="one prompt, not a list"):
        list(heed.generate("gpt", input_ids=[[5, 6], [7, 8]]))


def test_nothing_is_sent_before_a_loop(heed):
    generation = heed.generate("gpt", **TEXT)
    assert heed.asked == []
    assert "not sent" in repr(generation)
    with pytest.raises(AttributeError, match="text: nothing is generated yet"):
        _ = generation.text
    with pytest.raises(AttributeError, match="no 'weights'"):
        _ = generation.weights
    assert [token.id for token in generation] == [token.id for token in generation]  # each loop sends it
    assert heed.asked == ["POST /v1/generate/gpt"] * 2
    assert len(heed.ports) == 1  # the connection of a loop that has ended is used again


@pytest.mark.parametrize(
    ("wrong", "field"),
    [({"temperature": -1}, "temperature"), ({"max_new_tokens": 99}, "max_new_tokens"), ({"text": ""}, "text"),
     ({"outputs": "rollout"}, "outputs"), ({"top_q": 1}, "top_q")],
)  # fmt: skip
@pytest.mark.parametrize("run", [list, lambda generation: generation.result()], ids=["loop", "result"])
def test_what_is_wrong_names_its_field(heed, wrong, field, run):
    with pytest.raises(BadRequest) as error:
        run(heed.generate("gpt", **{**TEXT, **wrong}))
    assert error.value.field == field
    assert error.value.request_id


def test_a_model_that_does_not_generate_says_why(connect, shared_server, two_blocks):
    heed = connect(shared_server(two_blocks).url)
    with pytest.raises(TypeError, match="input_ids: expected numbers"):
        heed.generate("dot_product", input_ids=["the"])
    with pytest.raises(BadRequest, match="'dot_product' cannot generate: it was exported without the graphs of steps"):
        list(heed.generate("dot_product", "the cat"))
    with pytest.raises(NotFound):
        list(heed.generate("nonesuch", "the cat"))


def test_an_error_behind_the_first_tokens_is_raised(service, connect):
    heed = connect(f"http://127.0.0.1:{service.port}")
    generation, found = heed.generate("gpt", **TEXT), []
    with stepping(3, Invalid("the logits of the next token are not finite")), pytest.raises(BadRequest) as error:
        found += generation
    assert (error.value.status, error.value.code) == (422, "invalid")
    assert error.value.detail == "the logits of the next token are not finite"
    assert error.value.request_id
    assert len(generation.generated) == 3
    assert generation.finish_reason is None
    assert heed.generate("gpt", **TEXT).result().finish_reason == "length"


def is_over(service):
    return gauge(service.port, "requests_in_flight") == 0


def test_a_loop_that_is_left_ends_the_generation(service):
    """While the server computes the third token."""
    with stepping(2) as steps, Client(f"http://127.0.0.1:{service.port}") as heed:
        for _ in heed.generate("gpt", **TEXT):
            break
        until(lambda: is_over(service))
        assert steps.count <= 3
    until(lambda: service.budget.used == 0)
    assert steps.count <= 3


@pytest.mark.parametrize("with_block", [False, True])
def test_an_async_loop_that_is_left_ends_the_generation(service, with_block):
    async def leave(steps):
        async with AsyncClient(f"http://127.0.0.1:{service.port}") as heed:
            if with_block:
                async with heed.generate("gpt", **TEXT) as generation:
                    async for _ in generation:
                        break
            else:
                async for _ in heed.generate("gpt", **TEXT):
                    break
            await asyncio.to_thread(until, lambda: is_over(service))
            assert steps.count <= 3

    with stepping(2) as steps:
        asyncio.run(leave(steps))
    until(lambda: service.budget.used == 0)
    assert steps.count <= 3


def serve_once(answer):
    """The URL of a server that gives one request this answer, and closes the connection."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        connection, _ = listening.accept()
        listening.close()
        with connection:
            request = b""
            while not request.endswith(b"}"):  # a connection that is closed with unread bytes is reset
                request += connection.recv(65536)
            connection.sendall(answer)

    Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
TOKEN = b'event: token\ndata: {"id":1,"token":"a","text":"a","offset":[0,1],"logprob":null}\n\n'


@pytest.mark.parametrize(
    ("answer", "error", "count"),
    [
        (HEAD + b"Content-Length: 1000\r\n\r\n" + TOKEN, Unreachable, 1),
        (HEAD + b"\r\n" + TOKEN, ServerError, 1),  # a body without a length has come to its end
        (HEAD + b"\r\n<!doctype html>\n\n", ServerError, 0),
        (HEAD + b"\r\nevent: token\ndata: {}\n\n", ServerError, 0),
        (HEAD + b"\r\nevent: token\ndata: {\n\n", ServerError, 0),
        (HEAD + b"\r\nevent: error\ndata: {}\n\n", ServerError, 0),
        (HEAD + b'\r\nevent: error\ndata: {"status": "bad"}\n\n', ServerError, 0),
    ],
    ids=["cut off", "without an end", "a page", "no token", "no JSON", "no problem", "no status"],
)
def test_a_stream_that_is_not_whole_is_an_error(connect, answer, error, count):
    generation = connect(serve_once(answer)).generate("gpt", "the cat")
    with pytest.raises(error):
        list(generation)
    assert len(generation.generated) == count
    assert all(token.logprob == float("-inf") for token in generation.generated)


def test_events_may_be_cut_anywhere():
    """Also within characters; U+2028 ends no line, and comments are no events."""
    data = [{"text": "é\u2028\x85"}, {"text": "b"}]
    body = b": a comment\n\n" + b"".join(
        b"event: token\ndata: %b\n\n" % json.dumps(one, ensure_ascii=False).encode() for one in data
    )
    for size in range(1, len(body) + 1):
        events = Events()
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        assert [event for piece in pieces for event in events.feed(piece)] == [("token", one) for one in data]
