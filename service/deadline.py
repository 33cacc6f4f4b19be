"""Until when a request's run has to begin: the client says so, in a header or a parameter, or else a setting does."""

import re

from service.body import Headers
from service.errors import Malformed

# Envoy, and so Istio, tells those behind it how long it will wait.
HEADERS = {b"x-request-timeout": (10**9, "seconds"), b"x-envoy-expected-rq-timeout-ms": (10**6, "milliseconds")}
NUMBER = re.compile(rb"\d{1,9}(\.\d{1,9})?")


def deadline(began: int, headers: Headers, otherwise: float, asked: int = 0) -> int | None:
    """The deadline of a request that ``began`` then, both of ``time.perf_counter_ns``; None: it has none.

    Of the headers and the ``asked`` microseconds of a parameter the shortest counts; where there is none of them, the
    seconds ``otherwise``, of which 0 is none.

    Raises:
        Malformed: a header that is no number.
    """
    if not asked and headers.keys().isdisjoint(HEADERS):
        return began + int(otherwise * 1e9) if otherwise else None
    times = [1000 * asked] if asked else []
    for name, (unit, words) in HEADERS.items():
        value = headers.get(name)
        if value is not None:
            if not NUMBER.fullmatch(value):
                raise Malformed(
                    f"expected {name.decode()} to be a number of {words}, got {value[:20].decode('latin-1')!r}"
                )
            times.append(int(float(value) * unit))
    return began + min(times)
