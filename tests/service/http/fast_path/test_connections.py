"""Clients that hang up, send no more, do not read or are idle; a server that ends."""

import json
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import pytest

from service.http import fast_path
from tests.support.http_requests import ADDER, CRLF, SDPA, add, head, http
from tests.support.in_process import Client, known, serving_in_process
from tests.support.v2 import tensor
from tests.support.waiting import until

EARLY = head("POST /v2/models/none/infer HTTP/1.1", "Content-Length: 9")  # it is answered before its body comes


def end_idle_time(client: Client, is_time: Callable[[], object] = bool) -> None:
    """Have the timer of the connection fire as if its idle time were over, when ``is_time`` returns."""
    own = client.connection

    def fire() -> None:
        is_time()
        own._idle_since -= own.timeout_keep_alive
        own.timeout_keep_alive_handler()

    own.loop.call_soon_threadsafe(fire)


def test_clients_that_hang_up(service, client, monkeypatch):
    monkeypatch.setattr(fast_path, "BODY_TIMEOUT_S", 0.1)
    request = known(client)
    for is_reset in (False, True):
        for cut in (20, -20, len(request)):
            with Client(service) as fresh:
                fresh.send(request[:cut])
                if is_reset:
                    fresh.reset()
    until(lambda: len(service.connections) == 1)
    before = service.tasks
    client.send(request[:-20])
    until(lambda: service.tasks == before + 1)  # by then the time for the bodies before is over, too
    assert client.ask(request[-20:]).sum() == [3.5] * 3
    client.learn(request)


def test_a_client_that_sends_no_more_is_gone(threaded, gate):
    """Whether it has closed its connection or only its half of it: the server cannot tell."""
    with Client(threaded) as half, Client(threaded) as gone:
        for client in (half, gone):
            client.send(http(add(1.5)))
        until(lambda: len(threaded.server.server_state.tasks) == 2)
        half.socket.shutdown(socket.SHUT_WR)
        gone.file.close()
        gone.socket.close()
        until(lambda: not threaded.connections)
        gate.set()
        assert half.is_closed()


def test_a_client_that_never_reads_is_not_written_to_without_end(service, client):
    request = http({"inputs": [tensor("x", np.ones((300, 512)))]}, "/v2/models/identity/infer")
    with Client(service, room=4096) as greedy:
        length = len(greedy.learn(request).body)
        quick = known(client)
        own, state, before = greedy.connection, service.server.server_state, service.tasks
        while not own.flow.write_paused:  # each comes by itself, and is answered at once
            answered = state.total_requests
            greedy.send(request)
            until(lambda: state.total_requests > answered)  # noqa: B023
            client.ask_quick(quick)  # is answered after the answer before it has been written
        assert service.tasks == before
        assert service.budget.used > own.transport.get_write_buffer_size()
        greedy.send(request)
        until(lambda: service.tasks == before + 1)
        greedy.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            greedy.send(request * 100)
        assert own.transport.get_write_buffer_size() < 100_000 + 2 * length
        client.ask_quick(quick)
    until(lambda: own not in service.connections)
    assert not service.budget.used


def test_an_idle_connection_is_closed(service, monkeypatch):
    """Blank lines do not keep it, nor does the body of a request that was answered before."""
    monkeypatch.setattr(service.server.config, "timeout_keep_alive", 0.1)
    with Client(service) as idle, Client(service) as blank, Client(service) as early:
        assert idle.ask(http(add(1.5))).sum() == [2.5] * 3
        assert idle.is_closed()
        assert blank.ask(http(add(1.5)) + CRLF).sum() == [2.5] * 3
        assert blank.is_closed()
        early.send(EARLY + b"123456789")
        assert early.answer().status == 404
        assert early.is_closed()


def test_a_connection_is_not_closed_before_it_is_idle_for_long_enough(service, client, other, monkeypatch):
    monkeypatch.setattr(fast_path, "BODY_TIMEOUT_S", 0.1)
    request, tasks = known(client), service.tasks
    client.ask_quick(request)
    own = client.connection
    own.loop.call_soon_threadsafe(own.timeout_keep_alive_handler)  # its timer was set for a request before
    client.ask_quick(request)
    client.send(request[:-5])
    until(lambda: service.tasks == tasks + 1)  # its body did not come in time for the fast path
    end_idle_time(client)
    assert client.ask(request[-5:]).sum() == [3.5] * 3
    end_idle_time(client)
    assert client.is_closed()


def test_a_request_that_comes_in_time_is_answered_however_late_it_is_read(client):
    request, has_stopped, has_sent = known(client), threading.Event(), threading.Event()
    end_idle_time(client, lambda: (has_stopped.set(), has_sent.wait(60)))
    assert has_stopped.wait(60)  # the event loop reads nothing until the request is sent
    client.send(request)
    has_sent.set()
    assert client.answer().sum() == [3.5] * 3
    end_idle_time(client)
    assert client.is_closed()


def test_the_end_of_a_server(models):
    """Idle connections are closed; a body on its way is answered, and so is a request of a client that goes on."""
    with (
        serving_in_process(models) as service,
        Client(service) as client,
        Client(service) as idle,
        Client(service) as busy,
    ):
        request = known(client)
        for one in (idle, busy):
            one.ask_quick(request)
        client.send(request[:-5])
        idle.ask_quick(request)  # by then the event loop has read what the client sent
        service.server.should_exit = True
        until(lambda: (b"connection", b"close") in service.server.server_state.default_headers)
        before = service.tasks
        assert busy.ask(request).fields["connection"] == "close"
        assert service.tasks == before + 1
        assert idle.is_closed()
        answer = client.ask(request[-5:])
        assert answer.sum() == [3.5] * 3
        assert answer.fields["connection"] == "close"
        assert busy.is_closed()
        assert client.is_closed()


def test_the_end_of_a_server_whose_clients_read_nothing(models, caplog):
    rows = {"query": np.ones((1, 1400, 1)).tolist()}
    long = http({**rows, "key": rows["query"], "value": rows["query"]}, SDPA)  # its answer takes some 8 MB
    with serving_in_process(models, shutdown_seconds=1) as service, ExitStack() as stack:
        for request in (long, http({"inputs": [tensor("x", np.ones((300, 512)))]}, "/v2/models/identity/infer")):
            client = stack.enter_context(Client(service, room=4096))
            for _ in range(8):
                client.send(request)
            own = client.connection
            until(lambda: own.is_writing and own.flow.write_paused)  # noqa: B023
        caplog.clear()
        service.server.should_exit = True
        service.thread.join(60)
    unexpected = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert unexpected == ["connections closed because clients did not read their responses in time: 2"]


@pytest.mark.parametrize("piece", [b"X", b"Content-Length: 9\r\n\r\n{"], ids=["head", "body"])
def test_the_time_to_read_a_request_is_limited_after_quick_answers(client, piece):
    client.ask_quick(known(client))
    client.send(f"POST {ADDER} HTTP/1.1\r\nHost: here\r\n".encode() + piece)
    client.end_read_time(early_s=0.2)
    client.end_read_time()
    refused = client.answer()
    assert refused.status == 408
    assert json.loads(refused.body)["error"].endswith(".")
    assert client.is_closed()


def test_the_length_of_a_head_is_limited_after_quick_answers(client):
    client.ask_quick(known(client))
    assert client.ask(b"POST / HTTP/1.1\r\nX: " + b"x" * (70 << 10)).status == 431
    assert client.is_closed()


def test_what_is_answered_early_is_not_answered_twice(client):
    """Its body does not come: the connection is closed without another word."""
    assert client.ask(EARLY).status == 404
    client.end_read_time()
    assert client.is_closed()


def test_line_breaks_between_requests_do_not_add_up(service, client):
    request, own = known(client), client.connection
    own.max_header_bytes = 10
    for _ in range(20):
        client.send(CRLF)
        until(lambda: own._head_bytes == 2)
        assert client.ask_quick(request).status == 200
        until(lambda: not own._head_bytes)  # the server forgets the line break after it has written the answer
    until(lambda: not service.budget.used)
