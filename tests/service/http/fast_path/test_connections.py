"""Clients that hang up, send no more, do not read or are idle; a server that ends."""

import json
import socket
import threading
import time

import numpy as np
import pytest

from service.http import fast_path
from tests.support.http_requests import ADDER, CRLF, SLOW, add, head, http
from tests.support.in_process import Client, known, serving_in_process
from tests.support.v2 import tensor
from tests.support.waiting import until


def test_clients_that_hang_up(service, client, monkeypatch):
    monkeypatch.setattr(fast_path, "BODY_TIMEOUT_S", 0.1)
    request = known(client)
    reset = b"\1\0\0\0\0\0\0\0"
    for how in (None, reset):
        for cut in (20, -20, len(request)):
            with Client(service) as fresh:
                fresh.send(request[:cut])
                if how:
                    fresh.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, how)
    until(lambda: len(service.connections) == 1)
    time.sleep(2 * fast_path.BODY_TIMEOUT_S)
    client.learn(request)


def test_a_client_that_sends_no_more_still_gets_its_answers(service, hasty, client):
    """On the quick way, on the ordinary one, in a thread, and with requests behind one another."""
    quick = known(client)
    other = http(add(2.5), ADDER, "X: _")
    slow = http(SLOW, "/v2/models/slow/infer")
    for at, requests in (
        (service, [quick]),
        (service, [other]),
        (service, [http(b"", "/v2/models/adder", method="GET")]),
        (hasty, [slow]),
        (hasty, [slow, other, other]),
        (hasty, [http(SLOW, "/v2/models/slow/infer", version="1.0")]),
    ):
        with Client(at) as half:
            half.socket.sendall(b"".join(requests))
            half.socket.shutdown(socket.SHUT_WR)
            assert [half.answer().status for _ in requests] == [200] * len(requests)
            assert half.is_closed()
    with Client(service) as half:  # half a request is none
        half.socket.sendall(other[:-5])
        half.socket.shutdown(socket.SHUT_WR)
        assert half.is_closed()


def test_a_client_that_has_closed_is_found_out_and_one_that_sends_no_more_is_not(hasty):
    """Both look alike until they are written to, which happens where an answer takes its time."""
    long = {"inputs": [tensor("x", np.ones((1000, 512)))]}
    with Client(hasty) as half, Client(hasty) as gone:
        for one in (half, gone):
            one.send(http(long, "/v2/models/slow/infer"))
        half.socket.shutdown(socket.SHUT_WR)
        until(lambda: len(hasty.server.server_state.tasks) == 2)
        gone.file.close()
        gone.socket.close()
        until(lambda: len(hasty.connections) == 1)
        assert half.file.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert half.file.readline() == CRLF
        assert half.answer().status == 200
        assert half.is_closed()


def test_blank_lines_do_not_keep_an_idle_connection(service, monkeypatch):
    monkeypatch.setattr(service.server.config, "timeout_keep_alive", 3)
    with Client(service) as fresh, Client(service) as early:
        known(fresh)
        fresh.send(CRLF)
        assert early.ask(head("POST /v2/models/none/infer HTTP/1.1", "Content-Length: 9")).status == 404
        early.send(b"123456789")
        assert fresh.is_closed()
        assert early.is_closed()


def test_a_client_that_never_reads_is_not_written_to_without_end(service, client):
    rows = np.ones((1000, 3))
    request = http({"inputs": [tensor("x", rows), tensor("z", rows)]})
    with Client(service, room=4096) as greedy:
        length = len(greedy.learn(request).body)
        (own,) = (of for of in service.connections if of.client == greedy.socket.getsockname())
        state, before = service.server.server_state, service.tasks
        while not own.flow.write_paused:  # each comes by itself, and is answered at once
            answered = state.total_requests
            greedy.send(request)
            until(lambda: state.total_requests > answered)  # noqa: B023
        assert service.tasks == before
        greedy.send(request)
        until(lambda: service.tasks == before + 1)
        greedy.socket.settimeout(1)
        with pytest.raises(TimeoutError):
            greedy.send(request * 1000)
        assert own.transport.get_write_buffer_size() < 100_000 + 2 * length
        client.ask_quick(known(client))
    until(lambda: own not in service.connections)


def test_a_connection_is_closed_when_it_is_idle_and_not_before(service, monkeypatch):
    keep_alive_s = 4
    monkeypatch.setattr(service.server.config, "timeout_keep_alive", keep_alive_s)
    monkeypatch.setattr(fast_path, "BODY_TIMEOUT_S", 0.5)
    with Client(service) as busy, Client(service) as idle, Client(service) as slow:
        request = known(busy)
        idle.ask_quick(request)
        slow.ask_quick(request)
        tasks = service.tasks
        slow.send(request[:-5])
        until(lambda: service.tasks == tasks + 1)  # its body did not come in time for the fast path
        for _ in range(10):
            time.sleep(keep_alive_s / 8)
            before = time.monotonic()
            busy.ask_quick(request)
        assert slow.ask(request[-5:]).sum() == [3.5] * 3
        assert idle.is_closed()
        assert busy.is_closed()
        assert time.monotonic() - before > 0.9 * keep_alive_s


def test_a_request_that_comes_in_time_is_answered_however_late_it_is_read(service, monkeypatch):
    monkeypatch.setattr(service.server.config, "timeout_keep_alive", 2)
    with Client(service) as client:
        request = known(client)
        client.ask_quick(request)
        (own,) = (of for of in service.connections if of.client == client.socket.getsockname())
        is_blocked = threading.Event()

        def block() -> None:
            is_blocked.set()
            time.sleep(3)

        own.loop.call_soon_threadsafe(block)
        assert is_blocked.wait(60)
        client.ask_quick(request)
        assert client.is_closed()


def test_a_body_on_its_way_is_answered_before_the_end(models):
    with serving_in_process(models) as service, Client(service) as client, Client(service) as idle:
        request = known(client)
        idle.ask_quick(request)
        client.send(request[:-5])
        idle.ask_quick(request)  # by then the event loop has read what the client sent
        service.server.should_exit = True
        assert idle.is_closed()
        answer = client.ask(request[-5:])
        assert answer.sum() == [3.5] * 3
        assert answer.fields["connection"] == "close"
        assert client.is_closed()


def test_while_it_ends_each_answer_closes_its_connection(models):
    with serving_in_process(models) as service, Client(service) as client:
        request = known(client)
        service.server.should_exit = True
        until(lambda: (b"connection", b"close") in service.server.server_state.default_headers)
        before = service.tasks
        assert client.ask(request).fields["connection"] == "close"
        assert service.tasks == before + 1
        assert client.is_closed()


def test_limits_hold_after_quick_answers(models):
    with serving_in_process(models, read_timeout_seconds=0.5, max_header_bytes=4096) as service:
        for piece, status in ((b"X: " + b"x" * 8192, 431), (b"X", 408), (b"Content-Length: 9\r\n\r\n{", 408)):
            with Client(service) as client:
                request = known(client)
                for _ in range(4):
                    time.sleep(0.4)
                    assert client.ask_quick(request).sum() == [3.5] * 3  # what was before does not count against it
                before = time.monotonic()
                client.send(f"POST {ADDER} HTTP/1.1\r\nHost: here\r\n".encode() + piece)
                refused = client.answer()
                assert refused.status == status
                assert json.loads(refused.body)["error"].endswith(".")
                assert client.is_closed()
                assert status == 431 or time.monotonic() - before > 0.4


def test_what_is_answered_early_is_not_answered_twice(hasty):
    """Its body does not come: the connection is closed without another word."""
    with Client(hasty) as client:
        assert client.ask(head("POST /v2/models/none/infer HTTP/1.1", "Content-Length: 9")).status == 404
        assert client.is_closed()
