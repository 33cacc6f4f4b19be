"""What fails says what is wrong, whichever way it was asked; what is refused for now is asked again.

Messages of mistakes stand in mistakes.txt, in full, below the calls that make them. URL is a server; no server
listens at CLOSED.
"""

import json
import socket
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest

import heed_client
from service.base.errors import codes
from tests.support.client_calls import SDPA, drawn, sdpa

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
    "derived output": ({"outputs": ["rollout"]}, 400, "outputs"),
    "missing": ({"key": None}, 422, "key"),
    "top_k": ({"weights_top_k": 0}, 422, "weights_top_k"),
    "heads": ({"heads": 7}, 422, "heads"),
    "decimals": ({"decimals": 8}, 422, "decimals"),
}


@pytest.mark.parametrize("binary", [False, True, None])
@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong(sync_heed, case, binary):
    change, status, field = BAD[case]
    with pytest.raises(heed_client.BadRequest, match=field) as caught:
        sync_heed.attend(SDPA, **sdpa() | change, binary=binary)
    assert (caught.value.status, caught.value.field) == (status, field)
    assert caught.value.code == ("malformed" if status == 400 else "invalid")
    assert field in caught.value.detail
    assert len(caught.value.request_id) > 8
    assert caught.value.retry_after is None
    sync_heed.attend(SDPA, **sdpa())


def test_an_unknown_block(heed):
    attend = partial(heed.attend, query=drawn(2, 2))
    for ask in (heed.describe, partial(attend, binary=False), partial(attend, binary=True)):
        with pytest.raises(heed_client.NotFound, match=r"^404 "):
            ask("no/such")


def test_the_code_of_an_error_leads_to_its_documentation(shared_server, two_blocks):
    with httpx.Client(base_url=shared_server(two_blocks).url) as http:
        answers = {
            "not_found": http.get("/v1/nothing"),
            "method_not_allowed": http.put("/v1/attention"),
            "malformed": http.post(f"/v1/attention/{SDPA}", content="{"),
            "unsupported_media": http.post(
                f"/v1/attention/{SDPA}", content="{}", headers={"Content-Type": "text/plain"}
            ),
            "too_large": http.get(f"/v1/{'x' * 3000}"),
        }
    for code, answer in answers.items():
        assert answer.json()["code"] == code
        assert answer.json()["type"] == f"/docs/guide/errors.html#{code}"


@pytest.mark.parametrize("binary", [False, True, None])
@pytest.mark.parametrize("outputs", [None, ["output"], ["scores"]])
def test_what_overflows_is_an_error_either_way(sync_heed, binary, outputs):
    """V2 answers NaN in bytes; the native API says why."""
    inputs = {name: 1e30 * array for name, array in sdpa(2, 3).items()}
    with pytest.raises(heed_client.BadRequest, match="not finite: the inputs overflow float32") as caught:
        sync_heed.attend(SDPA, **inputs, binary=binary, outputs=outputs)
    assert caught.value.status == 422
    forbidden = sync_heed.attend(SDPA, **sdpa(2, 3), is_causal=True, binary=binary, outputs=["scores"])
    assert np.isneginf(forbidden["scores"]).any()


class Answering(httpx.MockTransport):
    """Gives these answers in turn, (status, headers, body), the last one for ever; ``requests`` came to it."""

    def __init__(self, *answers: tuple[int, dict[str, str], bytes]) -> None:
        super().__init__(self._answer)
        self.answers = answers
        self.requests: list[httpx.Request] = []

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        status, headers, body = self.answers[min(len(self.requests), len(self.answers)) - 1]
        return httpx.Response(status, headers=headers, content=body)

    def sent(self, header: str) -> list[str | None]:
        return [request.headers.get(header) for request in self.requests]


GOOD = (200, {}, b'{"blocks": []}')
NOW = {"Retry-After": "0"}


def test_a_refusal_is_asked_again_as_the_server_says(connect):
    transport = Answering((429, NOW, b""), (503, NOW, b""), GOOD)
    assert connect(transport=transport, retries=2).blocks() == []
    assert len(transport.requests) == 3
    done = b'event: done\ndata: {"text": "", "finish_reason": "eos", "usage": {}}\n\n'
    transport = Answering((503, NOW, b"busy"), (200, {}, done))
    generation = connect(transport=transport).generate("any", "a text")
    assert list(generation) == []
    assert (generation.finish_reason, len(transport.requests)) == ("eos", 2)


@pytest.mark.parametrize(
    ("answer", "error", "times"),
    [
        ((503, NOW, b'{"title": "Full", "detail": "of it"}'), "Unavailable overloaded", 3),
        ((503, NOW | {"X-Error-Code": "not_ready"}, b'{"error": "loading"}'), "Unavailable not_ready", 3),
        ((429, {"Retry-After": "31"}, b'{"error": "later"}'), "Unavailable overloaded", 1),
        ((503, {}, b"<html>"), "Unavailable overloaded", 1),
        ((503, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, b""), "Unavailable overloaded", 1),
        ((401, NOW, b""), "Unauthorized unauthorized", 1),
        ((403, {}, b"[]"), "Unauthorized forbidden", 1),
        ((500, NOW, b""), "ServerError internal_error", 1),
        ((502, {}, b"<html>bad gateway"), "ServerError internal_error", 1),
        ((504, {}, b"null"), "DeadlineExceeded timed_out", 1),
        ((418, {}, b"\xff"), "BadRequest malformed", 1),
    ],
)
def test_what_is_not_asked_again(connect, answer, error, times):
    transport = Answering(answer)
    with pytest.raises(heed_client.Problem) as caught:
        connect(transport=transport, retries=2).blocks()
    assert f"{type(caught.value).__name__} {caught.value.code}" == error
    assert caught.value.code in codes()
    assert caught.value.status == answer[0]
    assert caught.value.title
    assert len(transport.requests) == times


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b"null", b'{"blocks": [{}]}'])
def test_another_server(connect, body):
    heed = connect(transport=Answering((200, {}, body)))
    for ask in (heed.blocks, lambda: heed.describe("any"), lambda: heed.attend("any", query=[[1]])):
        with pytest.raises(
            heed_client.ServerError, match=r"^200 OK: The response from http://\S+ is not from Heed$"
        ) as caught:
            ask()
        assert caught.value.code in codes()


def test_the_members_of_a_problem(connect):
    body = {"type": "about:blank", "title": "Full", "status": 503, "detail": "as much waits as may", "field": "x"}
    header = {"X-Request-ID": "abc", "Retry-After": "7", "Content-Type": "application/problem+json"}
    heed = connect(transport=Answering((503, header, json.dumps(body).encode())), retries=0)
    with pytest.raises(heed_client.Unavailable, match=r"^503 Full: as much waits as may$") as caught:
        heed.describe("any")
    found = caught.value
    assert (found.title, found.field, found.request_id, found.retry_after) == ("Full", "x", "abc", 7)


@pytest.mark.parametrize(
    ("variable", "given", "sent"),
    [
        (None, "secret", "Bearer secret"),
        (None, None, None),
        ("of the environment", None, "Bearer of the environment"),
        ("", None, None),
        ("of the environment", "given", "Bearer given"),
    ],
)
def test_url_and_key_of_the_environment_count_where_none_is_given(connect, monkeypatch, variable, given, sent):
    transport = Answering(GOOD)
    monkeypatch.setenv("HEED_URL", "heed.example/")
    monkeypatch.delenv("HEED_API_KEY", raising=False)
    if variable is not None:
        monkeypatch.setenv("HEED_API_KEY", variable)
    connect(transport=transport, api_key=given).blocks()
    connect("http://other.example", transport=transport, api_key=given).blocks()
    assert transport.sent("Authorization") == [sent, sent]
    assert transport.sent("Host") == ["heed.example", "other.example"]
    assert transport.sent("User-Agent") == [f"heed-client/{heed_client.__version__}"] * 2
    assert heed_client.__version__[0].isdigit()


def test_connections_are_kept(heed):
    for _ in range(3):
        heed.blocks()
    assert len(heed.ports) == 1


def test_no_answer_in_time(connect):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(heed_client.TimedOut, match="in time"):
            connect(url, timeout=0.1).blocks()


TABLE = Path(__file__).with_name("mistakes.txt").read_text()
CASES = [
    (call, "\n".join(message))
    for call, *message in (case.splitlines() for case in TABLE.strip().removeprefix(">>> ").split("\n>>> "))
]
NAMES = {**vars(heed_client), "httpx": httpx, "S": SDPA, "ones": np.ones((2, 2))}


@pytest.mark.parametrize(("call", "message"), CASES, ids=[call for call, _ in CASES])
def test_the_message_of_a_mistake(client, closed_address, monkeypatch, call, message):
    monkeypatch.chdir(Path(__file__).parents[2])
    url = str(client.base_url).rstrip("/")
    said = "nothing"
    with heed_client.Client(url) as heed:
        try:
            eval(call, {**NAMES, "heed": heed, "URL": url, "CLOSED": closed_address})  # noqa: S307  of this repository
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
    assert (
        said.replace(closed_address, "CLOSED").replace(url, "URL").replace(url.removeprefix("http://"), "HOST")
        == message
    )
