"""Bodies in pieces: what is kept of them, for how long, and what is released when they do not come."""

import json
import random

import numpy as np
import pytest

from service.http import fast_path
from tests.support.http_requests import ADDER, CRLF, add, add_binary, http
from tests.support.in_process import known
from tests.support.waiting import until


def large(rows: int, seed: int) -> bytes:
    """A request with random numbers behind its JSON, which is answered in binary."""
    numbers = np.random.default_rng(seed).standard_normal((rows, 512), np.float32)
    x = {"name": "x", "shape": [rows, 512], "datatype": "FP32", "parameters": {"binary_data_size": numbers.nbytes}}
    content = json.dumps({"inputs": [x], "parameters": {"binary_data_output": True}}).encode()
    length = f"Inference-Header-Content-Length: {len(content)}"
    return http(content + numbers.tobytes(), "/v2/models/identity/infer", length)


@pytest.mark.parametrize("rows", [40, 500])
def test_a_large_body_in_any_pieces_is_answered_bit_for_bit(rows, service, client, other):
    client.learn(large(rows, 0))
    for seed in range(1, 6):
        request = large(rows, seed)
        expected = other.ask_ordinary(request).alike
        body = request.index(CRLF * 2) + 4
        cuts = sorted({body, *random.Random(seed).sample(range(body, len(request)), 9)})
        pieces = [request[a:b] for a, b in zip([0, *cuts], [*cuts, len(request)], strict=True)]
        assert client.ask_quick(*pieces).alike == expected
        client.send(add_binary(1.5) + pieces[0], *pieces[1:-1], pieces[-1] + add_binary(2.5))
        assert [client.answer().status, client.answer().alike, client.answer().status] == [200, expected, 200]
    until(lambda: not service.budget.used)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_body_for_which_there_is_no_memory_is_not_reserved(is_known, service, client, monkeypatch):
    request = known(client) if is_known else http(add(1.5), ADDER, "X: not known")

    def fail(*_) -> None:
        raise MemoryError

    monkeypatch.setattr(fast_path, "BodyBuffer", fail)
    assert client.ask(request[:-5]).status == 503
    assert client.is_closed()
    assert not service.budget.used


@pytest.mark.parametrize("is_known", [True, False])
def test_a_body_is_reserved_as_it_comes(is_known, service, client, monkeypatch):
    """One that finds no room is refused as any other."""
    request = known(client) if is_known else http(add(1.5), ADDER, "X: not known either")
    client.send(request[:-5])
    own = client.connection
    until(lambda: own._request is not None)
    head, _, arrived = request[:-5].partition(CRLF * 2)
    reserved = len(arrived) + (0 if is_known else len(head) + 4)
    until(lambda: service.budget.used == reserved)
    monkeypatch.setattr(service.budget, "limit", len(arrived) + 4)
    assert b"exceeds the maximum allowed" in client.ask(request[-5:]).body
    until(lambda: not service.budget.used)


def test_the_time_to_read_a_request_counts_from_its_first_byte(service, client, monkeypatch):
    monkeypatch.setattr(fast_path, "BODY_TIMEOUT_S", 0.1)
    request = known(client)
    own, before = client.connection, service.tasks
    client.send(request[:-5])
    until(lambda: own._request is not None)
    began = own._awaited_since
    until(lambda: service.tasks == before + 1)
    assert own._awaited_since == began
    assert client.ask(request[-5:]).sum() == [3.5] * 3


def test_a_body_behind_another_request_does_not_wait_for_ever(service, client, monkeypatch):
    monkeypatch.setattr(fast_path, "BODY_TIMEOUT_S", 0.1)
    request, before = known(client), service.tasks
    client.send(http(add(1.5)) + request[:-5])
    assert client.answer().sum() == [2.5] * 3
    until(lambda: service.tasks == before + 2)
    assert client.ask(request[-5:]).sum() == [3.5] * 3
