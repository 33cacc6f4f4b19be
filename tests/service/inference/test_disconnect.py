"""The JSON of a request is read no further once its client has gone or its deadline has passed."""

import pytest

from service.base.errors import CLIENT_CLOSED_REQUEST
from tests.support.http_requests import SDPA, http
from tests.support.in_process import Client, serving_in_process
from tests.support.waiting import until

SDPA_V2 = "/v2/models/scaled_dot_product/infer"
ROWS = 1 << 12
LONG = "[" + ",".join(["0.1234567890123456789012345"] * (64 * ROWS)) + "]"  # some 7 MB, which take a second to read
BROKEN = LONG[:-1] + ", x]"
TENSOR = f'{{"shape": [{ROWS}, 64], "data": {LONG}}}'
NATIVE = f'{{"query": {TENSOR}, "key": {TENSOR}, "value": {TENSOR}}}'.encode()
INPUT = f'{{"name": "%s", "datatype": "FP32", "shape": [1, 1, {ROWS}, 64], "data": {LONG}}}'
V2 = ('{"inputs": [' + ", ".join(INPUT % name for name in ("query", "key", "value")) + "]}").encode()


@pytest.fixture(scope="module")
def service(two_blocks):
    with serving_in_process(two_blocks) as service:
        yield service


@pytest.fixture(params=[(SDPA, NATIVE), (SDPA_V2, V2)], ids=["native", "v2"])
def request_of(request):
    path, body = request.param
    return lambda *lines: http(body, path, *lines)


def test_a_disconnect_ends_the_decoding(service, request_of):
    counts = service.server.config.app.counts
    runs, failed = counts.inline_runs + sum(counts.runs.values()), _closed(counts)
    with Client(service) as client:
        client.send(request_of())
        until(lambda: counts.in_flight)
    until(lambda: not counts.in_flight)
    assert _closed(counts) == failed + 1
    assert counts.inline_runs + sum(counts.runs.values()) == runs
    until(lambda: not service.budget.used)


def test_the_deadline_ends_the_decoding(service, request_of):
    with Client(service) as client:
        answer = client.ask(request_of("X-Request-Timeout: 0.05"))
    assert answer.status == 504
    assert b"the deadline passed while the body was decoded" in answer.body


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [(SDPA, f'{{"query": {BROKEN}, "value": {BROKEN}}}', 422), (SDPA_V2, f'{{"inputs": [{INPUT % "query"}]}}', 400)],
    ids=["native", "v2"],
)
def test_a_missing_input_is_found_before_the_others_are_read(service, path, body, status):
    with Client(service) as client:
        answer = client.ask(http(body.replace(LONG, BROKEN).encode(), path))
    assert (answer.status, b"missing" in answer.body) == (status, True)


def _closed(counts) -> int:
    return sum(count for (_, _, status), count in counts.failed.items() if status == CLIENT_CLOSED_REQUEST)
