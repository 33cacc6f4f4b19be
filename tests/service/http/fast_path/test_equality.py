"""Answers, headers, logs, spans and counts of the fast path are those of the ordinary way."""

import json
import logging
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from service.base.timing import STAGES
from service.http import fast_path, routing
from service.telemetry import tracing
from service.telemetry.spans import Tracer
from tests.support.http_requests import ADDER, SDPA, add, add_binary, attend, head, http, named, sums_body
from tests.support.in_process import Client, known, serving_in_process
from tests.support.v2 import tensor
from tests.support.waiting import until

REQUESTS = {  # the usual ones, and those with an unusual head that says the same
    "json": http(add(1.5)),
    "named": http(named(1.5, "7")),
    "binary": add_binary(1.5),
    "native": http(attend(1.5), SDPA),
    "upgrade": http(add(1.5), ADDER, "Connection: upgrade", "Upgrade: other"),
    "twice": http(add(1.5), ADDER, "X: 1", "X: 1"),
    "an id twice": http(add(1.5), ADDER, "X-Request-ID: 1", "X-Request-ID: 2"),
    "long head": http(add(1.5), ADDER, "X: " + "x" * 4096),
    "two spaces": http(add(1.5), " " + ADDER),
    "blanks around a value": http(add(1.5), ADDER, "X-Request-ID: \t mine \t "),
    "a deadline": http(add(1.5), ADDER, "X-Request-Timeout: 10"),
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_both_ways_answer_alike(request_, client, other):
    quick, ordinary = client.learn(request_), other.ask_ordinary(request_)
    assert quick.alike == ordinary.alike
    assert quick.fields.keys() == ordinary.fields.keys()
    if b"X-Request-ID" in request_:
        assert quick.fields["x-request-id"] == ordinary.fields["x-request-id"]


MODES: dict[str, dict[str, Any]] = {
    "an access log": {"access_log": "all"},
    "an access log of errors": {"access_log": "errors"},
    "traces": {},
    "keys": {"api_keys_file": "keys"},
    "origins": {"cors_origins": "https://here.example"},
    "all of it": {"access_log": "all", "api_keys_file": "keys", "cors_origins": "https://here.example"},
}


@pytest.fixture
def spans(monkeypatch) -> InMemorySpanExporter:
    """The spans of servers that trace."""
    exporter = InMemorySpanExporter()
    tracer = Tracer(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "is_wanted", lambda: True)
    monkeypatch.setattr(tracing, "create_tracer", lambda: tracer)
    return exporter


@pytest.mark.parametrize("mode", MODES)
def test_both_ways_are_logged_traced_and_guarded_alike(mode, models, tmp_path, request, caplog):
    (tmp_path / "keys").write_text("mine\n")
    traced = request.getfixturevalue("spans") if "traces" in mode or mode == "all of it" else None
    more = {name: tmp_path / value if name == "api_keys_file" else value for name, value in MODES[mode].items()}
    live = http(b"", "/v2/health/live", method="GET")
    lines = ["X-Request-ID: a", f"traceparent: 00-{'1' * 32}-{'2' * 16}-01", "X-API-Key: mine"]
    caplog.set_level(logging.INFO)

    def seen(ask, sent: bytes) -> tuple:
        third.ask(live)
        caplog.clear()
        if traced is not None:
            traced.clear()
        answer = ask(sent)
        third.ask(live)  # what is logged of a request is logged before another one is answered
        logged = [logged_fields(record) for record in caplog.records if record.getMessage() == "request"]
        ended = traced.get_finished_spans() if traced is not None else ()
        spans = [(span.name, dict(span.attributes), span.status.status_code, span.kind) for span in ended]
        parents = [(span.context.trace_id, span.parent.is_remote) for span in ended]
        return answer.alike, list(answer.fields), logged, spans, parents

    def logged_fields(record: logging.LogRecord) -> dict[str, Any]:
        own = {"created", "msecs", "relativeCreated", "milliseconds", "peer", *STAGES}
        return {name: None if name in own else value for name, value in vars(record).items() if name != "taskName"}

    with serving_in_process(models, **more) as service, ExitStack() as clients:
        client, other, third = (clients.enter_context(Client(service)) for _ in range(3))
        for good, bad in (
            (http(add(1.5), ADDER, *lines), http(sums_body(66), ADDER, *lines)),
            (add_binary(1.5, *lines), http(b"{", ADDER, *lines)),
            (http(attend(1.5), SDPA, *lines), http({**attend(1.5), "key": [[1, 2]]}, SDPA, *lines)),
        ):
            client.learn(good)
            for sent in (good, bad):
                other.ask_ordinary(sent)  # what the first request of its kind learns is learned
                client.learn(good)
                quick, ordinary = seen(client.ask_quick, sent), seen(other.ask_ordinary, sent)
                assert quick == ordinary
                is_logged = "access_log" in more and (more["access_log"] == "all" or sent is bad)
                assert len(quick[2]) == is_logged
                assert len(quick[3]) == (traced is not None) * (5 if sent is good else len(quick[3]))
        others = [("X-API-Key: other", 401), ("X: none", 401)] if "api_keys_file" in more else []
        if "cors_origins" in more:
            others.append(("X-API-Key: mine\r\nOrigin: https://here.example", 200))
        for line, status in others:
            sent = http(add(1.5), ADDER, *lines[:2], line)
            first, second = seen(client.ask, sent), seen(other.ask_ordinary, sent)
            assert first == second
            assert first[0][0] == status
            assert ("access-control-allow-origin" in first[1]) == (status == 200)


def test_each_request_is_answered_for_itself(client):
    known(client)
    for x in np.arange(1.5, 9.5):
        assert client.ask_quick(http(add(x))).sum() == [x + 1] * 3
        client.learn(add_binary(x))
        quick = client.ask_quick(add_binary(x))
        array = np.frombuffer(quick.body[int(quick.fields["inference-header-content-length"]) :], np.float32)
        assert (array == x + 1).all()


def test_ids(service, client, other):
    """A response has the id of its own request, or a new one if the request has none."""
    mine, yours = (http(add(1.5), ADDER, f"X-Request-ID: {name}") for name in ("mine!", "yours"))
    none = known(client)
    client.learn(mine)
    other.learn(yours)
    asked = [(who, what) for who in (client, other) for what in (mine, yours, none, none)]
    names = [who.ask_quick(what).fields["x-request-id"] for who, what in asked]
    assert names[:2] == names[4:6] == ["mine!", "yours"]
    assert len(set(names)) == 6


ORDINARY = {  # requests that always have a task
    "GET": http(b"", method="GET"),
    "HEAD": http(b"", "/v2/health/live", method="HEAD"),
    "PUT": http(add(1.5), method="PUT"),
    "HTTP/1.0": http(add(1.5), version="1.0"),
    "HTTP/1.0 that stays": http(add(1.5), ADDER, "Connection: keep-alive", version="1.0"),
    "close": http(add(1.5), ADDER, "Connection: close"),
    "continue": http(add(1.5), ADDER, "Expect: 100-continue"),
    "chunked": head(f"POST {ADDER} HTTP/1.1", "Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n\r\n",
    "nowhere": http(add(1.5), "/v2/models/adder/else"),
    "no length": http(add(1.5), ADDER, "Inference-Header-Content-Length: -1"),
    "more than all": http(add(1.5), ADDER, "Inference-Header-Content-Length: 4000"),
    "long body": http(b" " * (fast_path.MAX_BODY_BYTES + 1)),
    "compressed": http(attend(1.5), SDPA, "Content-Encoding: gzip"),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_a_request_that_always_has_a_task(name, service):
    request = ORDINARY[name]
    for _ in range(3):
        with Client(service) as client:
            before = service.tasks
            client.send(request)
            assert client.file.readline().startswith(b"HTTP/1.1 ")
            assert service.tasks == before + 1


@pytest.mark.parametrize(
    ("url", "summand"),
    [
        (f"{ADDER}?x=/v2/models/adder1/infer", 1),
        (f"http://elsewhere{ADDER}", 1),
        ("/v2/models/%61dder/infer", 1),
        ("/v2/models/adder%31/infer", 9),  # adder1: a folder is called adder%31, too
        ("/v2/models/adder%2531/infer", 5),
        (f"{ADDER}/", 1),
        ("/v2/models/adder/versions/001/infer", 1),
    ],
)
def test_a_path_says_what_it_says_to_all(url, summand, client):
    request = http(add(1.5), url)
    assert client.ask_ordinary(request).sum() == [1.5 + summand] * 3
    assert client.learn(request).sum() == [1.5 + summand] * 3


@pytest.mark.parametrize("body", [named, lambda x, name: {"id": name, **add(x)}, lambda x, name: add(x, id=name)])
def test_an_id_in_the_body_is_said_back_wherever_it_stands(body, client):
    for name in "aabba":
        assert json.loads(client.ask(http(body(1.5, name))).body)["id"] == name


def test_urls_cached_are_bounded(service, client):
    for i in range(routing.MAX_URLS + 20):
        assert client.ask(http(add(1.5), f"{ADDER}?x={i}")).status == 200
    assert client.ask(http(add(1.5), f"{ADDER}?x={'x' * routing.MAX_URL_BYTES}")).status == 200
    urls = service.server.protocol.keywords["fast_path"].routes._by_url._entries
    assert len(urls) == routing.MAX_URLS
    assert max(map(len, urls)) <= routing.MAX_URL_BYTES
    client.learn(http(add(1.5)))


def test_requests_are_counted(service, client):
    def counted() -> int:
        stats = json.loads(client.ask(http(b"", "/v2/models/adder/stats", method="GET")).body)
        return stats["model_stats"][0]["inference_stats"]["success"]["count"]

    request, state = known(client), service.server.server_state
    counts = counted()
    client.ask_quick(request)  # by now what was answered before is counted
    total = state.total_requests
    for _ in range(10):
        client.ask_quick(request)
    assert counted() == counts + 11
    until(lambda: state.total_requests == total + 11)


NUMBERS = st.floats(-99, 99, width=32).map(lambda x: round(x, 1))


SENT = st.one_of(
    NUMBERS.map(lambda x: (ADDER, add(x))),
    NUMBERS.map(lambda x: (SDPA, attend(x))),
    st.sampled_from(
        [
            (ADDER, add(1.5)),
            (ADDER, add(1.5, id="a")),
            (ADDER, named(1.5, "a")),
            (ADDER, named(1.5, "b")),
            (ADDER, add(1.5, outputs=[{"name": "y", "parameters": {"binary_data": True}}])),
            (ADDER, add(1.5, outputs=[{"name": "else"}])),
            (ADDER, add(1.5, parameters={"timeout": 1})),
            (ADDER, {"inputs": [tensor("x", [[1, 2, 3]])]}),
            (ADDER, {"inputs": [tensor("x", [[1, 2]]), tensor("z", [[1, 2]])]}),
            (ADDER, json.dumps(add(1.5)).replace("1.5", "NaN").encode()),
            (ADDER, json.dumps(add(1.5)).replace("1.5", "'1'").encode()),
            (ADDER, json.dumps(add(1.5)).replace("1.5", "1e400").encode()),
            (ADDER, json.dumps(add(1.5))[:-1].encode()),
            (ADDER, b""),
            ("/v2/models/none/infer", add(1.5)),
            ("/v2/models/adder/versions/2/infer", add(1.5)),
            ("/v2/models/lookup/infer", {"inputs": [tensor("ids", [[1]], "INT64")]}),
            ("/v2/models/lookup/infer", {"inputs": [tensor("ids", [[7]], "INT64")]}),
            (SDPA, {**attend(1.5), "outputs": ["output"]}),
            (SDPA, {**attend(1.5), "else": 1}),
            (SDPA, {"query": [[1]]}),
            ("/v1/attention/none", attend(1.5)),
        ]
    ),
)
LINES = st.sampled_from([(), (), ("X-Request-ID: a",), ("Accept-Encoding: gzip",), ("Content-Type: text/plain",)])


def test_any_sequence_is_answered_alike(service):
    quick = 0

    @settings(max_examples=30)
    @given(sent=st.lists(st.tuples(SENT, LINES, st.floats(0, 1)), min_size=1, max_size=6), times=st.integers(1, 4))
    def alike(sent, times):
        nonlocal quick
        with Client(service) as client, Client(service) as other:
            for (path, body), lines, place in sent * times:
                request = http(body, path, *lines)
                cut = int(place * len(request))
                before = service.tasks
                found = client.ask(request) if place < 0.8 else client.ask(request[:cut], request[cut:])
                quick += service.tasks == before
                assert found.alike == other.ask_ordinary(request).alike

    alike()
    assert quick > 50
