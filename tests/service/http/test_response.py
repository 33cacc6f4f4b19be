"""The status of a failed request, in each API, and the limit that rejected it."""

import pytest
from starlette.requests import ClientDisconnect

from service.base.errors import CLIENT_CLOSED_REQUEST, Invalid, NotFound, TooLarge, TooMuchMemory
from service.http.response import failure


@pytest.mark.parametrize(
    ("error", "native", "v2", "limit"),
    [
        (Invalid("x"), 422, 400, ""),
        (TooLarge("x"), 413, 400, "max_body_bytes"),
        (TooMuchMemory("x"), 413, 400, "max_memory_bytes"),
        (NotFound("x"), 404, 404, ""),
        (KeyError("x"), 500, 500, ""),
        (ClientDisconnect(), CLIENT_CLOSED_REQUEST, CLIENT_CLOSED_REQUEST, ""),
    ],
)
def test_a_failure_has_the_status_of_its_api(error, native, v2, limit):
    assert failure(error, is_v2=False) == (native, limit)
    assert failure(error, is_v2=True) == (v2, limit)
