"""Triton's generate extension: the texts of ``/v1/generate`` in the words of V2."""

import json

import httpx
import pytest

from tests.support.in_process import serving_in_process

GENERATE, STREAM = "/v2/models/gpt/generate", "/v2/models/gpt/generate_stream"
TEXT = "the cat sat"


@pytest.fixture(scope="module")
def client(generating):
    with (
        serving_in_process(generating / "models") as service,
        httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=60) as client,
    ):
        yield client


def answer(client, path=GENERATE, **body):
    response = client.post(path, json={"text_input": TEXT, **body})
    assert response.status_code == 200, response.text
    return response.json()


def events(client, **body):
    response = client.post(STREAM, json={"text_input": TEXT, **body})
    assert response.headers["content-type"] == "text/event-stream"
    blocks = response.text.strip().split("\n\n")
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def test_the_text_is_that_of_the_native_api(client):
    native = client.post("/v1/generate/gpt", json={"text": TEXT, "max_new_tokens": 8, "ignore_eos": True}).json()
    expected = {
        "id": "7", "model_name": "gpt", "model_version": "1", "text_output": native["text"],
        "finish_reason": native["finish_reason"], "usage": native["usage"],
    }  # fmt: skip
    assert answer(client, id="7", max_tokens=8, ignore_eos=True) == expected
    of_version = "/v2/models/gpt/versions/1/generate"
    assert answer(client, of_version, id="7", parameters={"max_new_tokens": 8, "ignore_eos": True}) == expected


def test_a_stream_has_the_text_in_pieces(client):
    whole = answer(client, max_tokens=6)
    *pieces, last = events(client, max_tokens=6, stream=True)
    assert "".join(piece["text_output"] for piece in pieces) == whole["text_output"]
    assert len(pieces) == whole["usage"]["completion_tokens"]
    assert last == {**whole, "text_output": ""}


def test_parameters_are_those_of_the_native_api_and_of_other_backends(client):
    sampled = {"temperature": 1.5, "max_new_tokens": 6}
    native = client.post("/v1/generate/gpt", json={"text": TEXT, "seed": 3, **sampled}).json()
    sent = {"random_seed": 3, "stream": False, "stop_words": [""], "bad_words": [""], "beam_width": 1}
    assert answer(client, parameters=sampled | sent)["text_output"] == native["text"]
    word = native["text"].split()[1]
    stopped = answer(client, parameters=sampled | sent | {"stop_words": [word]})
    assert stopped["text_output"] == native["text"][: native["text"].index(word)]


def test_weights_can_be_asked_for(client):
    options = {"max_new_tokens": 3, "outputs": ["weights"], "layers": 0}
    native = client.post("/v1/generate/gpt", json={"text": TEXT, **options}).json()
    assert answer(client, parameters=options)["generated"] == native["generated"]
    assert [piece["token"] for piece in events(client, parameters=options)[:-1]] == native["generated"]


@pytest.mark.parametrize("path", [GENERATE, STREAM])
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"text_input": None}, "text_input: missing"),
        ({"text_input": ["a", "b"]}, "text_input: expected text"),
        ({"text_input": " "}, "text_input"),
        ({"parameters": []}, "parameters: expected an object"),
        ({"parameters": {"temperature": -1}}, "temperature"),
        ({"parameters": {"max_tokens": 2}, "max_tokens": 2}, "max_tokens: given twice"),
        ({"max_tokens": 2, "max_new_tokens": 2}, "max_new_tokens: given twice, also as max_tokens"),
        ({"beam_width": 4}, "beam_width: expected 1"),
        ({"bad_words": ["cat"]}, "bad_words: expected []"),
        ({"stream": "yes"}, "stream: expected"),
        ({"input_ids": [5]}, "input_ids: unknown field"),
        ({"text": "a"}, "text: unknown field; did you mean 'text_input'?"),
        ({"id": 7}, "id: expected text"),
    ],
)
def test_what_is_wrong_is_named_in_v2s_words(client, path, body, words):
    response = client.post(path, json={"text_input": TEXT, **body})
    assert response.status_code == 400, response.text
    assert list(response.json()) == ["error"]
    assert words in response.json()["error"]


def test_a_model_that_is_not_there(client):
    for path, words in (("gpt2", "gpt2"), ("gpt/versions/4", "version 4")):
        response = client.post(f"/v2/models/{path}/generate", json={"text_input": TEXT})
        assert response.status_code == 404
        assert words in response.json()["error"]
