"""Malformed heads, requests in pieces, and several of them in one packet."""

import json

import pytest

from service.http import fast_path
from tests.support.http_requests import ADDER, CRLF, SDPA, add, add_binary, head, http, slow
from tests.support.in_process import Client, known, serving_in_process
from tests.support.waiting import until

LENGTH = len(http(add(1.5)).partition(CRLF * 2)[2])


MALFORMED = {
    "two lengths": http(add(1.5), ADDER, f"Content-Length: {LENGTH}"),
    "another length": http(add(1.5), ADDER, "Content-Length: 0"),
    "chunked, too": http(add(1.5), ADDER, "Transfer-Encoding: chunked"),
    "chunked before": http(add(1.5)).replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nContent-Length"),
    "identity": http(add(1.5), ADDER, "Transfer-Encoding: identity"),
    "folded": http(add(1.5), ADDER, "X: y\r\n z"),
    "bare LF": http(add(1.5)).replace(b"Host: here\r\n", b"Host: here\n"),
    "bare LF at the end": http(add(1.5)).replace(b"\r\n\r\n", b"\n\n"),
    "bare CR": http(add(1.5), ADDER, "X: y\rz"),
    "NUL": http(add(1.5), ADDER, "X: \0"),
    "NUL in the path": http(add(1.5), ADDER + "\0"),
    "space before colon": http(add(1.5)).replace(b"Length:", b"Length :"),
    "plus": http(add(1.5)).replace(b"Length: ", b"Length: +"),
    "hexadecimal": http(add(1.5)).replace(b"Length: ", b"Length: 0x"),
    "no colon": http(add(1.5), ADDER, "X"),
    "no request": b"\0" + http(add(1.5)),
    "lower case": http(add(1.5), method="post"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_head_is_refused_after_a_good_one(name, service, client):
    client.ask_quick(known(client))
    for _ in range(2):
        with Client(service) as fresh:
            assert fresh.ask(MALFORMED[name]).status == 400
            assert fresh.is_closed()
    assert client.ask(MALFORMED[name]).status == 400
    assert client.is_closed()


def test_a_body_that_reads_like_a_head_is_none(client, other):
    """Its packet begins with the body of one request, and ends with another request of the same path."""
    announced = head(f"POST {ADDER} HTTP/1.1", f"Content-Length: {LENGTH}", "X: a")
    real = http(add(1.5, id="5" * 9), ADDER, "X: b")
    first = http(announced)
    client.send(first[: -len(announced)])
    other.ask(http(b"", "/v2/health/live", method="GET"))  # by then the event loop has read the first packet
    client.send(first[-len(announced) :] + real)
    assert [client.answer().status, client.answer().status] == [400, 200]
    assert other.ask(announced + json.dumps(add(2.5)).encode()).sum() == [3.5] * 3


def test_a_body_that_reads_like_a_request_is_none(client):
    """The request it belongs to is answered before it comes."""
    request = known(client)
    about = head("POST /v2/models/none/infer HTTP/1.1", f"Content-Length: {2 * len(request)}")
    assert client.ask(about).status == 404
    client.send(request, request)
    assert client.ask(http(add(4.5))).sum() == [5.5] * 3


def test_a_header_that_reads_like_a_request_is_none(client):
    request = known(client)
    client.send(b"POST /v2/models/none/infer HTTP/1.1\r\nX: ", request)
    assert client.answer().status == 404
    assert client.ask(http(add(4.5))).sum() == [5.5] * 3


def test_of_requests_in_one_packet_no_head_is_taken_for_another(client):
    one = http(add(1.5), ADDER, "Expect: 100-continue")
    client.send(one + http(add(1.5, id="5" * 9), ADDER, "Accept: 100-continue"))
    assert client.file.readline() == b"HTTP/1.1 100 Continue\r\n"
    assert client.file.readline() == CRLF
    assert [client.answer().sum(), client.answer().sum()] == [[2.5] * 3] * 2


def test_requests_in_one_packet(client):
    request = known(client)
    client.send(request * 3 + request[:-1])
    assert [client.answer().sum() for _ in range(3)] == [[3.5] * 3] * 3
    client.send(request[-1:] + request[:40])
    assert client.answer().sum() == [3.5] * 3
    assert client.ask(request[40:]).sum() == [3.5] * 3
    client.learn(request)
    client.send(request[:-5], request[-5:] + request, request)
    assert [client.answer().sum() for _ in range(3)] == [[3.5] * 3] * 3
    assert client.ask(request + b"\r\n").sum() == [3.5] * 3
    assert client.ask(request + b"\0").sum() == [3.5] * 3
    assert client.answer().status == 400
    assert client.is_closed()


@pytest.mark.parametrize("request_", [http(add(2.5)), add_binary(2.5)], ids=["json", "binary"])
def test_a_request_in_pieces(request_, client):
    """In two, byte by byte, and with the head in one piece."""
    alike = client.learn(request_).alike
    body = request_.index(CRLF * 2) + 4
    for cut in (1, 5, body - 3, body - 1, body, body + 1, len(request_) - 1):
        assert client.ask_quick(request_[:cut], request_[cut:]).alike == alike
    for head_length in (1, body):
        rest = (request_[i : i + 1] for i in range(head_length, len(request_)))
        assert client.ask_quick(request_[:head_length], *rest).alike == alike


def test_a_body_that_does_not_come_goes_the_ordinary_way(service, client, monkeypatch):
    monkeypatch.setattr(fast_path, "BODY_TIMEOUT_S", 0.1)
    request = known(client)
    before = service.tasks
    client.send(request[:-9])
    until(lambda: service.tasks == before + 1)
    client.send(request[-9:] + request)
    assert [client.answer().sum() for _ in range(2)] == [[3.5] * 3] * 2


def test_a_known_request_waits_for_the_one_before(service, client):
    request = known(client)
    before = service.tasks
    client.send(slow())
    until(lambda: service.tasks == before + 1)
    client.send(request)
    assert json.loads(client.answer().body)["model_name"] == "slow"
    assert client.answer().sum() == [3.5] * 3


LAST = {  # what comes behind a request that is still being answered, and the status then
    "no HTTP": (b"\0", 400),
    "a broken head": (MALFORMED["two lengths"], 400),
    "a broken chunk": (head(f"POST {ADDER} HTTP/1.1", "Transfer-Encoding: chunked") + b"2\r\n{}\r\n-1\r\n", 400),
    "a long head": (b"GET /v2 HTTP/1.1\r\nX: " + b"x" * (70 << 10), 431),
    "no head": (b"GET /v2 HTTP/1.1\r\n", 408),
    "no body": (http(add(1.5))[:-5], 408),
}


@pytest.mark.parametrize("name", LAST)
def test_a_refusal_waits_for_the_answers_before(name, threaded, gate):
    last, status = LAST[name]
    with Client(threaded) as client:
        client.send(http(add(3.5)) + http(add(4.5)) + last)
        until(lambda: client.connection.has_unparsed)
        gate.set()
        assert [client.answer().sum() for _ in range(2)] == [[4.5] * 3, [5.5] * 3]
        if status == 408:
            client.end_read_time()
        refused = client.answer()
        assert (refused.status, refused.fields["connection"]) == (status, "close")
        assert json.loads(refused.body).keys() & {"error", "detail"}
        assert client.is_closed()


@pytest.mark.parametrize("path", [ADDER, SDPA], ids=["v2", "native"])
def test_a_refusal_of_the_parser_is_an_error_of_the_api(path, client):
    refused = client.ask(head(f"POST {path} HTTP/1.1", "Content-Length: 2", "Content-Length: 3"))
    body, detail = json.loads(refused.body), "Invalid HTTP request received."
    if path == ADDER:
        assert refused.fields["content-type"] == "application/json"
        assert body == {"error": detail}
    else:
        assert refused.fields["content-type"] == "application/problem+json"
        assert (body["status"], body["title"], body["detail"]) == (400, "Bad Request", detail)
    assert refused.status == 400
    assert client.is_closed()


def test_a_refusal_of_no_http_is_an_error_of_the_native_api(client):
    refused = client.ask(b"\0\0\0\0\r\n\r\n")
    assert (refused.status, refused.fields["content-type"]) == (400, "application/problem+json")
    assert client.is_closed()


@pytest.mark.parametrize("last", [b"", LAST["a broken chunk"][0]], ids=["requests", "a broken one"])
def test_a_client_that_hangs_up_with_requests_in_the_pipe(last, threaded, gate, caplog):
    """The one that runs is not written to a connection that is gone, though others came behind it."""
    with Client(threaded) as client:
        client.send(http(add(4.5)) + http(add(5.5)) + last)
        until(lambda: client.connection.has_unparsed)
        client.reset()
    gate.set()
    until(lambda: not threaded.connections)
    until(lambda: not threaded.server.server_state.tasks)
    assert "Traceback" not in caplog.text


def test_a_body_that_is_too_long(models):
    with serving_in_process(models, max_body_bytes=LENGTH) as service, Client(service) as client:
        client.learn(http(add(1.5)))
        long = http(add(1.5, id="7"))
        answers = [client.ask(long) for _ in range(3)]
        assert {answer.status for answer in answers} == {400}
        assert all(b"max_body_bytes" in answer.body for answer in answers)
        assert client.ask_quick(http(add(1.5))).status == 200
