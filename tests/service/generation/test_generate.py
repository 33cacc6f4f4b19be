"""``POST /v1/generate``: tokens and weights as transformers generates them, at once and as they come."""

import asyncio
import gc
import json
import socket
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import numpy as np
import pytest
import torch
import transformers
from transformers import AutoTokenizer

from service.generation.decoder import load_decoder
from service.generation.group import SequenceGroup
from service.generation.sampling import Sampler, Sampling
from service.generation.sequence import GrowingSequence, Wanted
from service.model.loader import open_version
from service.ort.provider import Provider
from tests.support.waiting import until

PROMPT = [5, 9, 14, 30]
SITES = ["weights", "head_output", "hidden", "attention_output", "mlp_output"]
GENERATE = "/v1/generate/gpt"
ERROR = 3e-6
pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.fixture(scope="module")
def model(generating):
    return transformers.GPT2LMHeadModel.from_pretrained(generating / "gpt", attn_implementation="eager").eval()


@pytest.fixture
def ask(client):
    """The answer to a request that must succeed, with the prompt's ids unless it has a text."""

    def post(**body):
        body = body if "text" in body else {"input_ids": PROMPT, "ignore_eos": True, **body}
        response = client.post(GENERATE, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    return post


def events(client, **body):
    """The events of a stream: pairs of a name and its data."""
    with client.stream("POST", GENERATE, json=body | {"stream": True}) as response:
        assert response.headers["content-type"] == "text/event-stream"
        blocks = "".join(response.iter_text()).strip().split("\n\n")
    lines = [block.split("\n") for block in blocks]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]


def test_the_description_says_how_a_model_generates(client):
    description = client.get("/v1/attention/gpt").json()
    assert description["generate"] == {
        "two_stacks": False,
        "shares_runs": True,
        "quantized": None,
        "interventions": SITES,
    }
    assert description["generate_refused"] is None


def generated(model, count, **options):
    ids = torch.tensor([options.pop("ids", PROMPT)])
    return model.generate(
        ids, max_new_tokens=count, eos_token_id=-1, pad_token_id=1, output_attentions=True, output_hidden_states=True,
        return_dict_in_generate=True, do_sample=False, **options,
    )  # fmt: skip


def test_tokens_weights_and_hidden_states_are_those_of_transformers(ask, model):
    expected = generated(model, 12)
    answer = ask(max_new_tokens=12, outputs=["weights", "hidden_states"])
    assert [token["id"] for token in answer["generated"]] == expected.sequences[0, len(PROMPT) :].tolist()
    for place, token in enumerate(answer["generated"]):
        for name, theirs in (("weights", expected.attentions), ("hidden_states", expected.hidden_states)):
            layers = np.stack([layer.numpy()[0][..., -1:, :] for layer in theirs[place]])
            assert np.shape(token[name]) == layers.shape
            assert np.abs(np.array(token[name]) - layers).max() <= (ERROR if name == "weights" else 1e-4)
    assert answer["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 12, "total_tokens": 16}


def test_options_of_the_weights_hold_for_each_token(ask):
    whole = ask(max_new_tokens=3, outputs=["weights"])["generated"]
    options = {"layers": 1, "heads": [0, 2], "weights_top_k": 2, "decimals": 3}
    for token, selected in zip(whole, ask(max_new_tokens=3, outputs=["weights"], **options)["generated"], strict=True):
        weights = np.array(token["weights"])[[1]][:, [0, 2]]
        largest = np.argsort(-weights, kind="stable")[..., :2]
        assert np.array_equal(selected["weights"]["indices"], largest)
        np.testing.assert_allclose(
            selected["weights"]["values"], np.take_along_axis(weights, largest, -1), atol=0.5e-3 + 1e-6
        )
    for token, derived in zip(whole, ask(max_new_tokens=3, outputs=["entropy"])["generated"], strict=True):
        weights = np.array(token["weights"])
        np.testing.assert_allclose(derived["entropy"], -(weights * np.log(weights)).sum(-1), atol=1e-5)


def test_probabilities_of_the_token_and_its_alternatives(ask, model):
    answer = ask(max_new_tokens=4, next_tokens=5, outputs=["logprobs"])["generated"]
    ids = PROMPT + [token["id"] for token in answer]
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([ids])).logits.double(), -1)[0, len(PROMPT) - 1 : -1].numpy()
    for token, expected in zip(answer, logprobs, strict=True):
        assert token["logprob"] == pytest.approx(expected[token["id"]], abs=1e-5)
        np.testing.assert_allclose(token["logprobs"], expected, atol=1e-5)
        largest = np.argsort(-expected)[:5]
        assert [one["id"] for one in token["next_tokens"]] == largest.tolist()
        np.testing.assert_allclose(
            [one["probability"] for one in token["next_tokens"]], np.exp(expected[largest]), 1e-4
        )


def test_a_text_is_continued_by_text(ask, generating):
    tokenizer = AutoTokenizer.from_pretrained(generating / "gpt")
    answer = ask(text="the cat sat", max_new_tokens=6, ignore_eos=True)
    ids = [token["id"] for token in answer["generated"]]
    assert answer["tokens"] == ["<s>", "the", "cat", "sat", "</s>"]
    for token in answer["generated"]:
        assert answer["text"][slice(*token["offset"])] == token["text"]
    assert answer["text"].split() == tokenizer.decode(ids, skip_special_tokens=True).split()


def test_a_stream_has_what_the_whole_answer_has(ask, client):
    body = {"input_ids": PROMPT, "ignore_eos": True, "max_new_tokens": 5, "outputs": ["weights"], "next_tokens": 2}
    whole = ask(**body)
    *tokens, (last, done) = events(client, **body)
    assert tokens == [("token", token) for token in whole["generated"]]
    assert last == "done"
    assert {name: done[name] for name in ("text", "finish_reason", "usage")} == {
        name: whole[name] for name in ("text", "finish_reason", "usage")
    }
    assert 0 < done["first_token_ms"] <= done["total_ms"]


def test_a_stream_ends_with_the_tokens_of_its_text(ask, client):
    whole = ask(text="the cat sat", max_new_tokens=1)
    *_, (_, done) = events(client, text="the cat sat", max_new_tokens=1)
    assert whole["tokens"] == ["<s>", "the", "cat", "sat", "</s>"]
    assert done.items() >= {name: whole[name] for name in whole.keys() - {"model", "generated"}}.items()


def test_a_list_has_the_tokens_of_each_prompt_alone(ask):
    sampled = {"temperature": 1.5, "seed": 3, "max_new_tokens": 6}
    prompts = [PROMPT, [40, 3, 3, 8]]
    several = ask(input_ids=prompts, **sampled)
    for prompt, tokens in zip(prompts, several["generated"], strict=True):
        alone = ask(input_ids=prompt, **sampled)["generated"]
        assert [token["id"] for token in tokens] == [token["id"] for token in alone]
        for token, other in zip(tokens, alone, strict=True):  # float32 products of one row and of several differ
            assert token["logprob"] == pytest.approx(other["logprob"], abs=1e-5)
    assert several["usage"]["completion_tokens"] == 12
    assert len(several["finish_reason"]) == len(several["text"]) == 2


def test_a_long_prompt_is_computed_in_parts(ask, model, monkeypatch):
    monkeypatch.setattr("service.generation.sequence.PREFILL", 7)
    ids = np.random.default_rng(0).integers(5, 60, 30).tolist()
    answer = ask(input_ids=ids, max_new_tokens=5)["generated"]
    assert [token["id"] for token in answer] == generated(model, 5, ids=ids).sequences[0, 30:].tolist()


def test_why_it_ends(ask, client):
    tokens = [token["id"] for token in ask(max_new_tokens=12)["generated"]]
    place = next(at for at, token in enumerate(tokens) if at and token not in tokens[:at])
    for stop in (tokens[place], [59, tokens[place]]):
        answer = ask(max_new_tokens=12, stop=stop)
        assert (answer["finish_reason"], len(answer["generated"])) == ("stop", place + 1)
    whole = ask(text="the cat", max_new_tokens=12, ignore_eos=True)
    word = whole["text"].split()[2]
    stopped = ask(text="the cat", max_new_tokens=12, ignore_eos=True, stop=["never", word])
    assert stopped["finish_reason"] == "stop"
    assert stopped["text"] == whole["text"][: whole["text"].index(word)]
    assert stopped["generated"][-1]["offset"] == [len(stopped["text"])] * 2


def test_an_end_token_ends_it(ask):
    """Sampling finds one sooner or later."""
    answers = (ask(max_new_tokens=40, temperature=3.0, seed=seed, ignore_eos=False) for seed in range(100))
    answer = next(answer for answer in answers if answer["finish_reason"] == "eos")
    ids = [token["id"] for token in answer["generated"]]
    assert ids.index(2) == len(ids) - 1
    assert answer["generated"][-1]["text"] == ""


def test_of_fewer_keys_than_asked_for_all_are_answered(ask):
    answer = ask(max_new_tokens=3, outputs=["weights"], weights_top_k=5)["generated"]
    assert [np.shape(token["weights"]["values"])[-1] for token in answer] == [4, 5, 5]


def test_a_version_that_has_generated_is_freed(generating):
    model = open_version(generating / "models" / "gpt" / "1", Provider("cpu", "requested"), 1)
    decoder = load_decoder(generating / "models" / "gpt" / "1", model, 1)
    sequence = GrowingSequence(decoder, np.array(PROMPT), 1, {}, Sampler(Sampling()), Wanted())
    task = SequenceGroup(sequence).task()
    task.stored.run(task.graph, None, {}, (), None)
    is_freed = weakref.ref(model)
    del model, sequence, task
    assert is_freed() is None


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"temperature": -1}, 422, "temperature"),
        ({"top_p": 0}, 422, "top_p"),
        ({"max_new_tokens": 0}, 422, "max_new_tokens"),
        ({"max_new_tokens": 45}, 422, "max_new_tokens"),
        ({"input_ids": [[]]}, 422, "input_ids"),
        ({"input_ids": [60]}, 422, "input_ids"),
        ({"input_ids": [5] * 48}, 422, "input_ids"),
        ({"input_ids": None, "text": " "}, 422, "text"),
        ({"text": "the cat"}, 400, "input_ids"),
        ({"stop": ["x"] * 1000}, 422, "stop"),
        ({"stop": ""}, 422, "stop"),
        ({"stream": True, "input_ids": [PROMPT, PROMPT]}, 422, "stream"),
        ({"stream": "yes"}, 422, "stream"),
        ({"decoder_text": "the"}, 422, "decoder_text"),
        ({"outputs": ["rollout"]}, 400, "outputs"),
        ({"outputs": ["weights"], "heads": 9}, 422, "heads"),
        ({"next_tokens": 0}, 422, "next_tokens"),
        ({"max_tokens": 5}, 400, "max_tokens"),
    ],
)
def test_what_is_wrong_is_named(client, body, status, field):
    response = client.post(GENERATE, json={"input_ids": PROMPT, **body})
    assert (response.status_code, response.json()["field"]) == (status, field), response.text


def test_a_model_that_does_not_generate_says_so(shared_server, texts_repository):
    with httpx.Client(base_url=shared_server(texts_repository).url) as client:
        for name, reason in (("bert", "BertModel does not generate"), ("dot_product", "without the graphs of steps")):
            response = client.post(f"/v1/generate/{name}", json={"input_ids": PROMPT})
            assert response.status_code == 422
            assert reason in response.json()["detail"]
            assert client.get(f"/v1/attention/{name}").json()["generate"] is None
        assert client.get("/v1/attention/bert").json()["generate_refused"] == "BertModel does not generate"


def test_a_client_that_leaves_ends_the_run(service, client):
    """Within a step: nothing is in progress, and no memory is held."""
    with client.stream("POST", GENERATE, json={"input_ids": PROMPT, "max_new_tokens": 44, "stream": True}) as response:
        next(response.iter_raw())
    until(lambda: service.budget.used == 0 and in_flight(client) == 0)


def test_nothing_is_left_of_clients_that_leave_at_any_moment(service, client):
    """200 requests, 32 at a time: some read all, some leave in the body, before the answer, or after some bytes."""

    def request(index):
        draw = np.random.default_rng(index)
        body = {
            "input_ids": draw.integers(5, 60, draw.integers(1, 30)).tolist(), "max_new_tokens": 15, "ignore_eos": True,
            "stream": bool(draw.integers(2)), "outputs": ["weights"][: draw.integers(2)],
        }  # fmt: skip
        content = json.dumps(body).encode()
        head = b"POST /v1/generate/gpt HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        whole = head + b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(content), content)
        kind = draw.integers(4)
        with socket.create_connection(("127.0.0.1", service.port), 60) as connection:
            connection.sendall(whole if kind else whole[: draw.integers(len(whole))])
            if kind == 2:
                connection.recv(int(draw.integers(1, 4000)))
            elif kind == 3:
                answer = b"".join(iter(partial(connection.recv, 1 << 16), b""))
                assert b"event: done" in answer or b'"finish_reason":"length"' in answer
                return 1
        return 0

    def unfinished():
        # `type`, because isinstance asks a weak proxy for the class of an object that may be gone
        tasks = [one for one in gc.get_objects() if issubclass(type(one), asyncio.Task) and not one.done()]
        return sorted(task.get_coro().__qualname__ for task in tasks)

    before = unfinished()
    with ThreadPoolExecutor(32) as pool:
        assert sum(pool.map(request, range(200))) > 30
    until(lambda: service.budget.used == 0 and in_flight(client) == 0)
    until(lambda: unfinished() == before)


def in_flight(client):
    return metric(client, "heed_requests_in_flight")


def metric(client, name):
    lines = client.get("/metrics").text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith((f"{name} ", f"{name}{{"))), 0)


def test_tokens_and_their_times_are_counted(ask, client):
    names = ["prompt_tokens_total", "generated_tokens_total", *(
        f"time_{of}_token_seconds_count" for of in ("to_first", "per_output")
    ), "generation_batch_size_count"]  # fmt: skip

    def counts():
        return [metric(client, f"heed_{name}") for name in names]

    before = counts()
    ask(max_new_tokens=5)
    until(lambda: [after - count for after, count in zip(counts(), before, strict=True)] == [4, 5, 1, 4, 4])
