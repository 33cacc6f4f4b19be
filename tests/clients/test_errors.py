"""What fails says what is wrong, whichever way it was asked; what is refused for now is asked again."""

import asyncio
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import heed_client
from tests.support.client_calls import SDPA, drawn, sdpa
from tests.support.server import serving

BAD = {
    "disagree": ({"key": drawn(7, 9)}, 422, "key"),
    "rank": ({"key": drawn(1, 1, 1, 7, 8)}, 422, "key"),
    "nan": ({"value": np.full((7, 3), np.nan, np.float32)}, 422, "value"),
    "infinity": ({"value": np.full((7, 3), np.inf)}, 422, "value"),
    "overflow": ({"value": np.full((7, 3), 1e300)}, 422, "value"),
    "empty": ({"value": np.empty((0, 3), np.float32)}, 422, "value"),
    "type": ({"is_causal": 3}, 422, "is_causal"),
    "fractions": ({"nonpad_kv_seqlen": 1.5}, 422, "nonpad_kv_seqlen"),
    "unknown": ({"kee": drawn(7, 8)}, 400, "kee"),
    "outputs": ({"outputs": ["wheights"]}, 400, "outputs"),
    "missing": ({"key": None}, 422, "key"),
    "top_k": ({"weights_top_k": 0}, 422, "weights_top_k"),
}


@pytest.mark.parametrize("binary", [False, True, None])
@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong(heed, case, binary):
    change, status, field = BAD[case]
    with pytest.raises(heed_client.BadRequest, match=field) as caught:
        heed.attend(SDPA, **sdpa() | change, binary=binary)
    assert (caught.value.status, caught.value.field) == (status, field)
    assert field in caught.value.detail
    assert len(caught.value.request_id) > 8
    assert caught.value.retry_after is None
    heed.attend(SDPA, **sdpa())


@pytest.mark.parametrize("binary", [False, True])
def test_an_unknown_block(heed, binary):
    for ask in (lambda: heed.attend("no/such", query=drawn(2, 2), binary=binary), lambda: heed.describe("no/such")):
        with pytest.raises(heed_client.NotFound) as caught:
            ask()
        assert caught.value.status == 404


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([[1, 2], [3]], ValueError),
        ([["a"]], TypeError),
        (np.array([[1j]]), TypeError),
        (float("nan"), ValueError),
        ({}, TypeError),
    ],
)
def test_what_is_no_tensor_is_not_sent(heed, given, error):
    with pytest.raises(error, match=r"^scale: "):
        heed.attend(SDPA, **sdpa(), scale=given)
    assert not any("POST" in asked for asked in heed.asked)


def test_a_queue_that_is_full(two_blocks):
    """Refused with Retry-After where nothing is asked again; answered, all of them, where it is."""
    inputs = sdpa(1, 8, m=1000, n=1000)
    with serving(two_blocks, "--max-concurrent-runs", "1", "--max-queue", "1", "--batching", "off") as server:

        def ask(retries):
            with heed_client.Client(str(server.base_url), retries=retries) as heed:
                try:
                    return heed.attend(SDPA, **inputs, outputs=["output"]).output
                except heed_client.Unavailable as error:
                    return error

        with ThreadPoolExecutor(6) as threads:
            refused = [one for one in threads.map(ask, [0] * 6) if isinstance(one, Exception)]
            assert refused
            assert all(error.status == 503 and error.retry_after >= 1 for error in refused)
            assert len({output.tobytes() for output in threads.map(ask, [30] * 6)}) == 1


@contextmanager
def answering(*answers):
    """A server that gives these answers in turn, (status, header, body), the last one for ever; and what came to it."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            asked.append({**self.headers, "from": self.client_address})
            status, header, body = answers[min(len(asked), len(answers)) - 1]
            self.send_response(status)
            for name, value in {**header, "Content-Length": len(body)}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


GOOD = (200, {}, b'{"blocks": []}')


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_is_asked_again_as_the_server_says(connect, status):
    with answering((status, {"Retry-After": 0}, b""), (status, {"Retry-After": 0}, b""), GOOD) as (url, asked):
        heed = connect(url, retries=2)
        assert heed.blocks() == []
        assert len(asked) == 3
        heed.close()


@pytest.mark.parametrize(
    ("answer", "error", "times"),
    [
        ((503, {"Retry-After": 0}, b'{"title": "Full", "detail": "of it"}'), "Unavailable", 3),
        ((429, {"Retry-After": 31}, b'{"error": "later"}'), "Unavailable", 1),
        ((503, {}, b"<html>"), "Unavailable", 1),
        ((503, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, b""), "Unavailable", 1),
        ((401, {"Retry-After": 0}, b""), "Unauthorized", 1),
        ((403, {}, b"[]"), "Unauthorized", 1),
        ((500, {"Retry-After": 0}, b""), "ServerError", 1),
        ((502, {}, b"<html>bad gateway"), "ServerError", 1),
        ((504, {}, b"null"), "DeadlineExceeded", 1),
        ((418, {}, b"\xff"), "BadRequest", 1),
    ],
)
def test_what_is_not_asked_again(connect, answer, error, times):
    with answering(answer) as (url, asked):
        heed = connect(url, retries=2)
        with pytest.raises(heed_client.Problem) as caught:
            heed.blocks()
        assert type(caught.value).__name__ == error
        assert caught.value.status == answer[0]
        assert caught.value.title
        assert len(asked) == times
        heed.close()


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b"null", b'{"blocks": [{}]}'])
def test_another_server(connect, body):
    with answering((200, {}, body)) as (url, _):
        heed = connect(url)
        for ask in (heed.blocks, lambda: heed.describe("any"), lambda: heed.attend("any", query=[[1]])):
            with pytest.raises(heed_client.ServerError, match="No answer of Heed"):
                ask()
        heed.close()


def test_the_members_of_a_problem(connect):
    body = {"type": "about:blank", "title": "Full", "status": 503, "detail": "as much waits as may", "field": "x"}
    header = {"X-Request-ID": "abc", "Retry-After": 7, "Content-Type": "application/problem+json"}
    with answering((503, header, json.dumps(body).encode())) as (url, _):
        heed = connect(url, retries=0)
        with pytest.raises(heed_client.Unavailable, match=r"^503 Full: as much waits as may$") as caught:
            heed.describe("any")
        found = caught.value
        assert (found.title, found.field, found.request_id, found.retry_after) == ("Full", "x", "abc", 7)
        heed.close()


def test_the_key_is_sent(connect):
    with answering(GOOD) as (url, asked):
        for key in ("secret", None):
            heed = connect(url, api_key=key)
            heed.blocks()
            heed.close()
    assert [headers.get("Authorization") for headers in asked] == ["Bearer secret", None]


def test_url_and_key_of_the_environment(monkeypatch):
    """They count where none is given; an empty key is none."""

    async def blocks(**given):
        async with heed_client.AsyncClient(**given) as heed:
            await heed.blocks()

    def ask(**given):
        with heed_client.Client(**given) as heed:
            heed.blocks()
        asyncio.run(blocks(**given))

    with answering(GOOD) as (url, asked):
        monkeypatch.setenv("HEED_URL", url)
        for key in ("of the environment", ""):
            monkeypatch.setenv("HEED_API_KEY", key)
            ask()
        monkeypatch.setenv("HEED_API_KEY", "of the environment")
        monkeypatch.setenv("HEED_URL", "http://127.0.0.1:1")
        ask(url=url, api_key="given")
    keys = ["Bearer of the environment"] * 2 + [None] * 2 + ["Bearer given"] * 2
    assert [headers.get("Authorization") for headers in asked] == keys


def test_a_server_that_asks_for_keys(connect, two_blocks, tmp_path):
    (tmp_path / "keys").write_text("secret\n")
    with serving(two_blocks, "--api-keys-file", str(tmp_path / "keys")) as server:
        for binary in (False, True):
            assert connect(server.base_url, api_key="secret").attend(SDPA, **sdpa(), binary=binary)
            for key in ("wrong", None):
                with pytest.raises(heed_client.Unauthorized) as caught:
                    connect(server.base_url, api_key=key).attend(SDPA, **sdpa(), binary=binary)
                assert caught.value.status == 401


def test_connections_are_kept(connect):
    with answering(GOOD) as (url, asked):
        heed = connect(url)
        for _ in range(3):
            heed.blocks()
        assert len({headers["from"] for headers in asked}) == 1
        heed.close()


def test_nobody_listens(connect):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(heed_client.Unreachable, match=url):
            connect(url).blocks()


def test_no_answer_in_time(connect):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(heed_client.TimedOut, match="in time"):
            connect(url, timeout=0.1).blocks()
