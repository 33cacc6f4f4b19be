"""A request to generate, as ``Client`` and ``AsyncClient`` return it: a loop over it sends it and yields the tokens."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, cast
from urllib.parse import quote

import httpx
import numpy as np

from heed_client import native
from heed_client.answer import Tokens
from heed_client.calls import Call, Calls, parse
from heed_client.errors import ServerError, problem, transport_errors
from heed_client.generation.answer import Events, GeneratedToken, decode

P = ParamSpec("P")


@dataclass(frozen=True)
class GenerateRequest:
    """The ``tensors`` and the other ``fields`` of a request to ``model``; ``quantized`` keeps weights of uint8."""

    model: str
    tensors: Mapping[str, np.ndarray]
    fields: Mapping[str, Any]
    quantized: bool

    def send(self, calls: Calls, **fields: Any) -> Call[httpx.Response]:
        """Send it with further ``fields``."""
        content = native.encode(self.tensors, {**self.fields, **fields})
        path = f"/v1/generate/{quote(self.model, safe='')}"
        return calls.send("POST", path, content, {"Content-Type": "application/json"})

    def token(self, fields: Mapping[str, Any]) -> GeneratedToken:
        return decode(fields, self.fields.get("weights_dtype"), self.quantized)


class _Generation:
    """The methods and attributes that both kinds share. ``execute`` is the client's."""

    # set when the request is sent
    text: Any
    generated: list[Any]
    finish_reason: Any
    usage: Mapping[str, int] | None
    first_token_ms: float | None
    total_ms: float | None
    prompt: Tokens | None
    request_id: str | None

    def __init__(self, execute: Callable[..., Any], calls: Calls, request: GenerateRequest) -> None:
        self.model = request.model
        self._execute = execute
        self._calls = calls
        self._request = request
        self._response: httpx.Response | None = None

    def __getattr__(self, name: str) -> Any:
        if name in _Generation.__annotations__:
            raise AttributeError(f"{name}: nothing is generated yet; loop over this object, or call result()")
        raise AttributeError(f"a generation has no {name!r}")

    def __repr__(self) -> str:
        found = self.__dict__
        what = repr(found["text"]) if "text" in found else "not sent; loop over it, or call result()"
        return f"<Generation of {self.model}: {what}>"

    def _begin(self) -> None:
        self.text, self.generated, self.finish_reason, self.usage = "", [], None, None
        self.first_token_ms = self.total_ms = self.prompt = self.request_id = None

    def _stream(self) -> Call[httpx.Response]:
        """Send the request. The response has the events."""
        for name in ("text", "audio"):
            if isinstance(self._request.fields.get(name), list):
                raise ValueError(f"{name}: a loop takes one prompt; call result() for a list")
        self._begin()
        self._events = Events()
        self._response = yield from self._request.send(self._calls, stream=True)
        self.request_id = self._response.headers.get("X-Request-ID")
        return self._response

    def _feed(self, response: httpx.Response, data: bytes) -> Iterator[GeneratedToken]:
        """The tokens that ``data`` completes.

        Raises:
            Problem: the server has sent an error.
            ServerError: these are not events of Heed.
        """
        for name, fields in parse(response, lambda: [*self._events.feed(data)]):
            if name == "token":
                token = parse(response, partial(self._request.token, fields))
                self.generated.append(token)
                self.text = self.text[: token.offset[0]] + token.text
                yield token
            elif name == "done":
                for key in ("text", "finish_reason", "usage", "first_token_ms", "total_ms"):
                    setattr(self, key, fields.pop(key, None))
                self.prompt = Tokens(self.model, fields) if fields else None
            elif name == "error":
                raise parse(response, partial(problem, response, fields))

    def _check_end(self, response: httpx.Response) -> None:
        if self.finish_reason is None:
            detail = f"The response from {response.url} is not from Heed: it has no end"
            raise ServerError(response.status_code, response.reason_phrase, detail)

    def _whole(self) -> Call[None]:
        """Send the request; read the answer, which is not streamed."""
        self._begin()
        response = yield from self._request.send(self._calls)
        self.request_id = response.headers.get("X-Request-ID")

        def read() -> None:
            fields = response.json()
            generated = fields.pop("generated")
            self.generated = [
                [self._request.token(token) for token in of] if isinstance(of, list) else self._request.token(of)
                for of in generated
            ]
            self.text, self.finish_reason, self.usage = (fields.pop(key) for key in ("text", "finish_reason", "usage"))
            model = fields.pop("model")
            self.prompt = Tokens(model, fields) if fields else None

        parse(response, read)


class Generation(_Generation):
    """Tokens after a prompt. A loop sends the request and yields each token as it arrives; ``result`` waits for all.

    ``text`` is the text after the prompt so far, and ``generated`` the list of its tokens. After the loop
    ``finish_reason`` is "length", "stop" or "eos", ``usage`` has the numbers of tokens, ``first_token_ms`` and
    ``total_ms`` are the server's times, and ``prompt`` has the prompt's tokens. Leaving the loop closes the connection,
    and the server stops. Each loop sends the request again.
    """

    def __iter__(self) -> Iterator[GeneratedToken]:
        response: httpx.Response = self._execute(self._stream(), stream=True)
        try:
            with transport_errors():
                for data in response.iter_bytes():
                    yield from self._feed(response, data)
            self._check_end(response)
        finally:
            response.close()

    def result(self) -> Self:
        """Generate all tokens in one answer, also for a list of prompts, and return this object.

        For a list of prompts ``text``, ``generated`` and ``finish_reason`` are lists with an item for each, and
        ``usage`` is the total. The times are None.

        Raises:
            HeedError: see ``heed_client.errors``.
        """
        self._execute(self._whole())
        return self

    def close(self) -> None:
        """Close the connection of a loop, which ends the generation."""
        if self._response is not None:
            self._response.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()


class AsyncGeneration(_Generation):
    """``Generation`` for asyncio: ``async for`` and ``await result()``.

    After leaving the loop, the connection is closed when the event loop next runs; the end of ``async with`` closes it
    at once.
    """

    async def __aiter__(self) -> AsyncIterator[GeneratedToken]:
        response: httpx.Response = await self._execute(self._stream(), stream=True)
        try:
            with transport_errors():
                async for data in response.aiter_bytes():
                    for token in self._feed(response, data):
                        yield token
            self._check_end(response)
        finally:
            await response.aclose()

    async def result(self) -> Self:
        """As ``Generation.result``."""
        await self._execute(self._whole())
        return self

    async def aclose(self) -> None:
        """Close the connection of a loop, which ends the generation."""
        if self._response is not None:
            await self._response.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        await self.aclose()


def asynchronous(
    method: Callable[Concatenate[Any, P], Generation],
) -> Callable[Concatenate[Any, P], AsyncGeneration]:
    """The ``method`` of ``Client`` for ``AsyncClient``, whose ``_generation`` returns an ``AsyncGeneration``."""
    return cast(Callable[Concatenate[Any, P], AsyncGeneration], method)
