"""What one request to generate may take of the server: memory, the queue, its threads, and the event loop."""

import json
import logging
import threading

import httpx
import numpy as np
import pytest
from onnxruntime import RunOptions

from service.generation.decoder import Decoder, Generation, in_vocabulary, load_decoder
from service.generation.endpoint import AT_ONCE
from service.generation.group import SequenceGroup
from service.generation.sampling import Sampler, Sampling
from service.generation.sequence import GrowingSequence, Wanted
from service.model.loader import open_version
from service.ort.provider import Provider
from tests.support.http_client import gauge
from tests.support.in_process import Errors, serving_in_process
from tests.support.waiting import until

PROMPT = [5, 9, 14, 30]
GENERATE = "/v1/generate/gpt"
FAILING = 44  # the last token of a prompt whose run fails
MOST = 40


@pytest.fixture
def decoder(generating):
    version = generating / "models" / "gpt" / "1"
    model = open_version(version, Provider("cpu", "requested"), 1)
    decoder = load_decoder(version, model, 1)
    decoder.kept = model  # a decoder does not hold its model
    return decoder


@pytest.fixture
def steps(monkeypatch):
    """The prompts of all steps; one fails where the token ``FAILING`` has come three steps before."""
    choose, prompts = Sampler.choose, []

    def recorded(sampler, logits, seen, place):
        prompts.append(seen[: len(PROMPT)].tolist())
        if place == 2 and seen[len(PROMPT) - 1] == FAILING:
            raise MemoryError
        return choose(sampler, logits, seen, place)

    monkeypatch.setattr(Sampler, "choose", recorded)
    return prompts


def post(service, timeout=60, **body):
    body = {"input_ids": PROMPT, "ignore_eos": True, **body}
    return httpx.post(f"http://127.0.0.1:{service.port}{GENERATE}", json=body, timeout=timeout)


def sequence(decoder, prompt, most, *outputs):
    return GrowingSequence(decoder, np.array(prompt), most, {}, Sampler(Sampling()), Wanted(outputs))


def test_a_sequence_takes_no_memory_before_its_first_run(decoder):
    """So what it will take can be counted before, however much it is."""
    most = 2**63 - 1
    endless = sequence(decoder, PROMPT, most)
    assert endless.memory > most
    assert endless.step_memory(len(PROMPT), most) > most


def test_a_run_of_a_prompt_can_be_ended(decoder):
    """As a run that takes longer than ``max_run_seconds`` is, or one whose client has left."""
    options = RunOptions()
    options.terminate = True
    task = SequenceGroup(sequence(decoder, PROMPT, 1)).task()
    with pytest.raises(Exception, match="terminate"):
        task.stored.run(task.graph, None, {}, (), options)


def test_a_long_list_is_generated_whatever_the_length_of_the_queue(generating):
    prompts = [[5 + row % 50, 9] for row in range(100)]
    with serving_in_process(generating / "models", max_queue=1) as service:
        response = post(service, input_ids=prompts, max_new_tokens=3)
        refused = post(service, input_ids=[[5]] * 1025)
        assert f"{refused.json()['detail']}" == "input_ids: expected 1 to 1024 prompts, got 1025"
        alone = post(service, input_ids=prompts[70], max_new_tokens=3).json()
    assert response.status_code == 200, response.text
    assert [row[0]["id"] for row in response.json()["generated"]][70] == alone["generated"][0]["id"]
    assert len(response.json()["finish_reason"]) == 100


def test_the_text_of_a_decoder_is_counted(two_stacks):
    body = {"text": "the cat", "decoder_text": "the " * 100_000, "max_new_tokens": 1}
    with serving_in_process(two_stacks, memory_budget_bytes=200_000_000) as service:
        response = httpx.post(f"http://127.0.0.1:{service.port}/v1/generate/bart", json=body)
    assert response.status_code == 413, response.text
    assert "memory" in response.text


def test_a_token_beyond_the_vocabulary_is_never_forced():
    tokens = {"suppress_tokens": [-1, 3, 10], "begin_suppress_tokens": 9, "forced_eos_token_id": [9]}
    assert in_vocabulary(Generation(tokens=tokens), 10).tokens == {
        "suppress_tokens": [3], "begin_suppress_tokens": [9], "forced_eos_token_id": [9],
    }  # fmt: skip
    for name in ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"):
        reason = in_vocabulary(Generation(tokens={name: 10}), 10).refused
        assert reason == f"its {name}, 10, is none of its 10 tokens; correct it, and export it again"


def test_a_prompt_that_fails_ends_the_others(generating, steps):
    with serving_in_process(generating / "models") as service:
        response = post(service, input_ids=[[*PROMPT[:3], FAILING], *[PROMPT] * 50], max_new_tokens=MOST)
        assert response.status_code == 503, response.text
        so_far = len(steps)
        post(service, max_new_tokens=MOST)  # while which the others would go on
        assert gauge(service.port, "requests_queued") == 0
        assert service.budget.used == 0
    assert len(steps) <= so_far + MOST + 2 * AT_ONCE  # those in threads when it failed


def test_an_error_in_a_stream_is_sent_counted_and_logged(generating, steps, caplog):
    errors = Errors(logging.ERROR)
    logging.getLogger("heed").addHandler(errors)
    try:
        with serving_in_process(generating / "models") as service:
            response = post(service, input_ids=[*PROMPT[:3], FAILING], max_new_tokens=9, stream=True)
            *tokens, last = response.text.strip().split("\n\n")
            metrics = httpx.get(f"http://127.0.0.1:{service.port}/metrics").text
    finally:
        logging.getLogger("heed").removeHandler(errors)
    assert [token.split("\n")[0] for token in tokens] == ["event: token"] * 2
    name, data = last.split("\n")
    assert (name, json.loads(data.removeprefix("data: "))["status"]) == ("event: error", 503)
    assert 'heed_requests_total{api="generate",model="gpt",status="503"} 1' in metrics
    assert any(response.headers["x-request-id"] in message for message in errors.messages)


@pytest.mark.parametrize("outputs", [["weights"], ["logprobs"]])
def test_graphs_are_opened_beside_the_event_loop(generating, monkeypatch, outputs):
    """To open those of a large model takes seconds."""
    opened, threads = Decoder._opened, {}

    def recorded(decoder, name):
        threads[name] = threading.current_thread()
        return opened(decoder, name)

    monkeypatch.setattr(Decoder, "_opened", recorded)
    with serving_in_process(generating / "models") as service:
        post(service, max_new_tokens=1)
        post(service, max_new_tokens=1, outputs=outputs)
        assert threads.keys() == {"decode", "decode_output"}
        assert service.thread not in threads.values()


def test_a_client_that_leaves_a_list_ends_its_runs(generating, steps):
    with serving_in_process(generating / "models") as service:
        with pytest.raises(httpx.ReadTimeout):
            post(service, timeout=0.3, input_ids=[PROMPT] * 1000, max_new_tokens=MOST)
        until(lambda: service.budget.used == 0 and gauge(service.port, "requests_queued") == 0)
        so_far = len(steps)
        post(service, max_new_tokens=MOST)
    assert len(steps) <= so_far + MOST + 2 * AT_ONCE


def test_a_stream_that_is_not_finished_when_the_server_ends_says_so(generating, monkeypatch):
    choose, gate = Sampler.choose, threading.Event()

    def gated(sampler, logits, seen, place):
        assert place < 2 or gate.wait(60)
        return choose(sampler, logits, seen, place)

    monkeypatch.setattr(Sampler, "choose", gated)
    with serving_in_process(generating / "models", shutdown_seconds=1) as service:
        url = f"http://127.0.0.1:{service.port}{GENERATE}"
        body = {"input_ids": PROMPT, "ignore_eos": True, "max_new_tokens": MOST, "stream": True}
        with httpx.stream("POST", url, json=body, timeout=60) as response:
            parts = response.iter_text()
            first = next(parts)
            service.server.should_exit = True
            events = (first + "".join(parts)).strip().split("\n\n")
        gate.set()
    name, data = events[-1].split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["code"] == "not_ready"
