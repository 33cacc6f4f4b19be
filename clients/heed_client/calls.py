"""The calls, without a word of how bytes travel: generators of requests and waits that are sent the responses."""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from heed_client import binary, native
from heed_client.answer import Answer
from heed_client.arrays import Given, array
from heed_client.block import Block, Line, block, line
from heed_client.errors import BadRequest, ServerFailed, Unauthorized, problem

T = TypeVar("T")
Seconds = float
Call = Generator[httpx.Request | Seconds, httpx.Response | None, T]

LARGE = 512  # numbers, going and coming, from which bytes take less time than text
DEFAULT_OUTPUTS = ("output", "weights")


class Calls:
    """What ``Client`` and ``AsyncClient`` do; they only carry it out.

    ``http`` makes requests. A refusal (429, 503) that says when to come again is asked again, ``retries`` times,
    unless that is more than ``longest_wait`` seconds away: it was refused before any work.
    """

    def __init__(self, http: httpx.Client | httpx.AsyncClient, retries: int, longest_wait: Seconds) -> None:
        self._http = http
        self._retries = retries
        self._longest_wait = longest_wait
        self._described: dict[str, Block] = {}

    def blocks(self) -> Call[list[Line]]:
        response = yield from self._ask("GET", "/v1/attention")
        return _read(response, lambda: [line(said) for said in response.json()["blocks"]])

    def describe(self, name: str) -> Call[Block]:
        response = yield from self._ask("GET", f"/v1/attention/{quote(name, safe='')}")
        self._described[name] = described = _read(response, lambda: block(response.json()))
        return described

    def attend(
        self,
        name: str,
        inputs: Mapping[str, Given],
        outputs: Sequence[str] | None,
        average_attn_weights: bool,
        weights_top_k: int | None,
        in_binary: bool | None,
    ) -> Call[Answer]:
        arrays = {key: array(key, given) for key, given in inputs.items() if given is not None}
        options: dict[str, Any] = {"outputs": [*outputs]} if outputs is not None else {}
        if average_attn_weights:
            options["average_attn_weights"] = True
        if weights_top_k is not None:
            options["weights_top_k"] = weights_top_k
        if in_binary is not False and options.keys() <= {"outputs"}:
            described = self._described.get(name) or (yield from self.describe(name))
            call = binary.prepare(described, arrays, outputs or DEFAULT_OUTPUTS)
            if call is not None and (in_binary or call.numbers >= LARGE):
                try:
                    return (yield from self._in_binary(name, call))
                except Unauthorized:
                    raise
                except BadRequest:  # the native face says what is wrong, or does what V2 cannot
                    self._described.pop(name, None)  # the block may have changed
        return (yield from self._natively(name, native.build(arrays, options)))

    def _in_binary(self, name: str, call: binary.Call) -> Call[Answer]:
        headers, pieces = call.build()
        path = f"/v2/models/{quote(name, safe='')}/infer"
        response = yield from self._ask("POST", path, b"".join(pieces), headers)
        outputs = _read(response, lambda: call.read(response.content, int(response.headers[binary.HEADER])))
        return _answer(name, outputs, response)

    def _natively(self, name: str, content: bytes) -> Call[Answer]:
        path = f"/v1/attention/{quote(name, safe='')}"
        response = yield from self._ask("POST", path, content, {"Content-Type": "application/json"})
        said = _read(response, lambda: native.said(response.content))
        described = self._described.get(name)
        if described is None or said.keys() - described.outputs:
            described = yield from self.describe(name)
        return _answer(name, _read(response, lambda: native.read(said, described)), response)

    def _ask(
        self, method: str, path: str, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Call[httpx.Response]:
        """A good answer.

        Raises:
            Problem: another.
        """
        for left in range(self._retries, -1, -1):
            response = yield self._http.build_request(method, path, content=content, headers=headers)
            assert response is not None
            if response.is_success:
                return response
            error = problem(response)
            wait = error.retry_after if error.status in (429, 503) else None
            if not left or wait is None or wait > self._longest_wait:
                raise error
            yield wait
        raise AssertionError("the last one returns or raises")


def _read(response: httpx.Response, reader: Callable[[], T]) -> T:
    """What is in a good answer.

    Raises:
        ServerFailed: not what Heed answers; something else listens there.
    """
    try:
        return reader()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ServerFailed(response.status_code, "No answer of Heed", f"from {response.url}") from error


def _answer(name: str, outputs: Mapping[str, Any], response: httpx.Response) -> Answer:
    timing = {}
    for stage in response.headers.get("Server-Timing", "").split(","):
        what, _, duration = stage.strip().partition(";dur=")
        if duration:
            timing[what] = float(duration)
    return Answer(name, outputs, timing, response.headers.get("X-Request-ID"))
