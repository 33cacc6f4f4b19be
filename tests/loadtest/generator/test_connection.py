"""Answers of every form; and what is none."""

from unittest.mock import Mock

import pytest

from loadtest.generator.connection import Connection, Request

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    ("parts", "expected", "end"),
    [
        ([OK], [200, 200], ""),
        ([OK[:20], OK[20:]], [200, 200], ""),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", b"0\r\n\r\n"], [200, 200], ""),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" + OK], [200, 200], ""),
        ([b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"], [503], "close"),
        ([b"what?\r\n\r\n"], ["not HTTP"], "abort"),
        ([], ["connection lost"], ""),
        ([OK[:20]], ["connection lost"], ""),
    ],
)
def test_answers(parts, expected, end):
    """Two requests on one connection, each answered by ``parts``; then it is lost."""
    transport, results, lost = Mock(), [], []

    def post(connection: Connection) -> None:
        if len(results) < 2:
            connection.post(Request(b"ping", 0), 0, 0)

    connection = Connection(lambda _request, _start, result: results.append(result), post, lost.append, Mock())
    connection.connection_made(transport)
    for part in parts * len(expected):
        connection.data_received(part)
    connection.connection_lost(None)
    assert results == expected
    assert lost == [connection]
    assert [name for name, *_ in transport.method_calls] == ["write"] * len(expected) + [end] * bool(end)


def test_an_aborted_request_fails_with_the_reason():
    results = []
    connection = Connection(lambda *done: results.append(done), lambda _: None, lambda _: None, Mock())
    connection.connection_made(transport := Mock())
    connection.post(request := Request(b"ping", 0), 1.5, 2.0)
    connection.abort("timeout")
    assert results == [(request, 1.5, "timeout")]
    transport.abort.assert_called_once()


@pytest.mark.parametrize("last", [b"done", b"error"])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_the_tokens_of_a_stream_are_counted_as_they_come(size, last):
    """Wherever its bytes are cut. A stream that ends with an error is no answer."""
    data = b'data: {"text": "event: token\\n"}\n\n'
    stream = 3 * (b"event: token\n" + data) + b"event: " + last + b"\n" + data
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(stream), stream)
    results, tokens = [], []
    connection = Connection(
        lambda _request, _start, result: results.append(result), lambda _: None, lambda _: None,
        lambda *found: tokens.append(found),
    )  # fmt: skip
    connection.connection_made(Mock())
    for _ in range(2):
        connection.post(Request(b"ping", 0, is_stream=True), 1.5, 2.0)
        for at in range(0, len(answer), size):
            connection.data_received(answer[at : at + size])
    assert results == [200 if last == b"done" else "an error in the stream"] * 2
    assert sum(count for *_, count in tokens) == 6
    assert {start for start, *_ in tokens} == {1.5}
    assert [before > 0 for _, before, _ in tokens].count(False) == 2  # only the first token has none before
