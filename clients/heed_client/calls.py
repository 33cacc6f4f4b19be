"""The client's calls without I/O: generators that yield requests and waits, and receive the responses."""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import numpy as np

from heed_client import binary, native, v2
from heed_client.answer import Answer, Tokens
from heed_client.arrays import TensorLike, array
from heed_client.block import Block, BlockSummary, parse_block, parse_summary
from heed_client.connection import not_ready
from heed_client.errors import BadRequest, Conflict, ServerError, Unauthorized, problem
from heed_client.selection import normalized, output_names

T = TypeVar("T")
Seconds = float
Call = Generator[httpx.Request | Seconds, httpx.Response | None, T]

MIN_BINARY_NUMBERS = 512  # in inputs and outputs together, from which binary is faster than JSON
READY_TIMEOUT_S = 5
DEFAULT_OUTPUTS = ("output", "weights")
COMPARED = ("baseline", "difference")  # fields of requests with interventions, and of their answers
NATIVE_FIELDS = ("interventions", *COMPARED, "images", "audio")  # that V2 does not take
MEMORY, APPEND, AT = MEMORY_FIELDS = ("memory", "memory_append", "memory_at")
TEXT_FIELDS = ("text", "text_pair", "text_target", "truncation", "add_special_tokens")


class Calls:
    """The calls that ``Client`` and ``AsyncClient`` execute.

    ``http`` builds the requests. A request that the server rejects before any work (429, 503) is retried, up to
    ``retries`` times, if the server's ``Retry-After`` is at most ``max_wait_s`` seconds.
    """

    def __init__(self, http: httpx.Client | httpx.AsyncClient, retries: int, max_wait_s: Seconds) -> None:
        self._http = http
        self._retries = retries
        self._max_wait_s = max_wait_s
        self._blocks: dict[str, Block] = {}

    def blocks(self) -> Call[list[BlockSummary]]:
        response = yield from self.send("GET", "/v1/attention")
        return parse(response, lambda: [parse_summary(entry) for entry in response.json()["blocks"]])

    def ready(self) -> Call[str | None]:
        """Ask once whether the server is ready: None, or the reason why it is not."""
        response = yield self._http.build_request("GET", "/v2/health/ready", timeout=READY_TIMEOUT_S)
        assert response is not None
        if response.is_success:
            return None
        if response.status_code != 503:
            raise problem(response)
        return not_ready(response)

    def describe(self, name: str) -> Call[Block]:
        response = yield from self.send("GET", f"/v1/attention/{quote(name, safe='')}")
        self._blocks[name] = block = parse(response, lambda: parse_block(response.json()))
        return block

    def attend(
        self,
        name: str,
        inputs: Mapping[str, TensorLike],
        outputs: str | Sequence[str] | None,
        choices: Mapping[str, Any],
        quantized: bool,
        prefer_binary: bool | None,
    ) -> Call[Answer]:
        """Run a block. ``choices`` are the other options of ``Client.attend``, None if they are not given."""
        outputs = output_names(outputs)
        inputs, stored = _without_memory(inputs)
        texts = {key: inputs[key] for key in TEXT_FIELDS if inputs.get(key) is not None}
        if choices.get("next_tokens") is not None:
            return (yield from self._attend_texts(name, texts, inputs, outputs, {**choices, **stored}, quantized))
        tokens: Tokens | None = None
        if "text" in texts or "text_target" in texts:
            tokens = yield from self.tokenize(name, texts)
            block = self._blocks.get(name) or (yield from self.describe(name))
            inputs = {key: value for key, value in inputs.items() if key not in TEXT_FIELDS}
            inputs = {**_tensors(tokens, block), **inputs}
        arrays = {key: array(key, tensor) for key, tensor in inputs.items() if tensor is not None}
        options = normalized(choices) | stored
        is_native = any(choices.get(name) is not None for name in NATIVE_FIELDS)
        if is_native or (prefer_binary is None and choices.get("decimals") is not None):
            prefer_binary = False  # bytes are never rounded
        if prefer_binary is not False:
            block = self._blocks.get(name) or (yield from self.describe(name))
            own = {key: np.asarray(options[key]) for key in block.inputs if isinstance(options.get(key), list)}
            others = {key: value for key, value in options.items() if key not in own}
            request = binary.prepare(block, arrays | own, outputs or DEFAULT_OUTPUTS, others, quantized)
            if request is not None and (prefer_binary or stored or request.number_count >= MIN_BINARY_NUMBERS):
                try:
                    answer = yield from self._attend_v2(name, request, tokens)
                except (Unauthorized, Conflict):
                    raise
                except BadRequest:  # the native API supports more, and its errors name the field
                    self._blocks.pop(name, None)  # the block may have changed
                else:
                    if all(_is_valid(output, array) for output, array in answer.items()):
                        return answer  # otherwise the native API explains which output overflowed
                    if stored.get(APPEND):  # and would append again
                        detail = "an output is not finite; the keys were appended"
                        raise BadRequest(422, "Unprocessable Entity", detail, code="invalid")
        if outputs is not None:
            options["outputs"] = [*outputs]
        content = native.encode(arrays, options)
        return (yield from self._attend_native(name, content, options.get("weights_dtype"), quantized, tokens))

    def _attend_texts(
        self,
        name: str,
        texts: Mapping[str, Any],
        inputs: Mapping[str, TensorLike],
        outputs: Sequence[str] | None,
        choices: Mapping[str, Any],
        quantized: bool,
    ) -> Call[Answer]:
        """Run a model on texts by ``/v1/text``, whose response also has the tokens and the next tokens."""
        arrays = {
            key: array(key, value) for key, value in inputs.items() if key not in TEXT_FIELDS and value is not None
        }
        options = {**texts, **normalized(choices)}
        if outputs is not None:
            options["outputs"] = [*outputs]
        path, content = f"/v1/text/{quote(name, safe='')}", native.encode(arrays, options)
        response = yield from self.send("POST", path, content, {"Content-Type": "application/json"})
        fields = parse(response, lambda: native.parse(response.content))
        block = self._blocks.get(name)
        if block is None or native.unknown_outputs(outputs or DEFAULT_OUTPUTS, block):
            block = yield from self.describe(name)
        dtype = options.get("weights_dtype")
        decoded, tokens = parse(response, lambda: _outputs_and_others(name, fields, block, dtype, quantized))
        return _answer(name, decoded, response, Tokens(name, tokens))

    def tokenize(self, name: str, texts: Mapping[str, Any]) -> Call[Tokens]:
        """Tokenize texts; ``texts`` are the fields of the request."""
        content, headers = json.dumps(dict(texts)).encode(), {"Content-Type": "application/json"}
        response = yield from self.send("POST", f"/v1/tokenize/{quote(name, safe='')}", content, headers)

        def tokens() -> Tokens:
            fields = response.json()
            return Tokens(fields.pop("model"), fields)

        return parse(response, tokens)

    def _attend_v2(self, name: str, request: binary.BinaryRequest, tokens: Tokens | None) -> Call[Answer]:
        headers, pieces = request.encode()
        path = f"/v2/models/{quote(name, safe='')}/infer"
        response = yield from self.send("POST", path, b"".join(pieces), headers)
        outputs = parse(response, lambda: request.decode(response.content, int(response.headers[v2.HEADER])))
        return _answer(name, outputs, response, tokens)

    def _attend_native(
        self, name: str, content: bytes, weights_dtype: str | None, quantized: bool, tokens: Tokens | None
    ) -> Call[Answer]:
        path = f"/v1/attention/{quote(name, safe='')}"
        response = yield from self.send("POST", path, content, {"Content-Type": "application/json"})
        fields = parse(response, lambda: native.parse(response.content))
        block = self._blocks.get(name)
        if block is None or native.unknown_outputs(fields.keys() - {*COMPARED}, block):
            block = yield from self.describe(name)
        decoded, others = parse(response, lambda: _outputs_and_others(name, fields, block, weights_dtype, quantized))
        return _answer(name, decoded, response, Tokens(name, {**(tokens or {}), **others}))

    def send(
        self, method: str, path: str, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Call[httpx.Response]:
        """A response with a status of success, after retries if necessary.

        Raises:
            Problem: the last response has another status.
        """
        for retries_left in range(self._retries, -1, -1):
            response = yield self._http.build_request(method, path, content=content, headers=headers)
            assert response is not None
            if response.is_success:
                return response
            error = problem(response)
            wait_s = error.retry_after if error.status in (429, 503) else None
            if not retries_left or wait_s is None or wait_s > self._max_wait_s:
                raise error
            yield wait_s
        raise AssertionError("the last attempt returns or raises")


def parse(response: httpx.Response, parser: Callable[[], T]) -> T:
    """The result of ``parser``, which reads a successful response.

    Raises:
        ServerError: the response is not Heed's; the URL belongs to another server.
    """
    try:
        return parser()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        detail = f"The response from {response.url} is not from Heed"
        raise ServerError(response.status_code, response.reason_phrase, detail) from error


def _is_valid(name: str, output: Any) -> bool:
    """Whether all numbers are finite, or -inf in ``scores`` and ``lse``: masks forbid that. V2 does not check this."""
    if isinstance(output, tuple):
        return all(_is_valid(name, part) for part in output)
    finite = np.isfinite(output)
    return bool(finite.all()) or (name in ("scores", "lse") and bool((finite | np.isneginf(output)).all()))


def _without_memory(inputs: Mapping[str, TensorLike]) -> tuple[Mapping[str, TensorLike], dict[str, Any]]:
    """The inputs, and the fields of a stored memory; the input ``memory`` of some blocks is a tensor, not an id."""
    if not isinstance(inputs.get(MEMORY), str):
        return inputs, {}
    stored = {name: inputs[name] for name in MEMORY_FIELDS if inputs.get(name) is not None}
    return {name: tensor for name, tensor in inputs.items() if name not in MEMORY_FIELDS}, stored


def _tensors(tokens: Tokens, block: Block) -> dict[str, Any]:
    """The tensors of ``tokens`` that the model takes, without masks that mask nothing, which would make it slower."""
    names = [name for name in tokens if name in block.inputs]
    neutral = {name: 1 if name.endswith("attention_mask") else 0 for name in names if not name.endswith("input_ids")}
    return {
        name: tokens[name] for name in names if name not in neutral or (np.asarray(tokens[name]) != neutral[name]).any()
    }


def _outputs_and_others(
    name: str, fields: Mapping[str, Any], block: Block, weights_dtype: str | None, quantized: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The decoded outputs among the fields of an answer, and the other fields; ``baseline`` becomes an ``Answer``."""
    found = {key: value for key, value in fields.items() if not native.unknown_outputs([key], block)}
    others = {key: value for key, value in fields.items() if key not in found}
    if "baseline" in others:
        outputs, tokens = _outputs_and_others(name, others["baseline"], block, weights_dtype, quantized)
        others["baseline"] = Answer(name, outputs, tokens=tokens)
    return native.decode(found, block, weights_dtype, quantized), others


def _answer(name: str, outputs: Mapping[str, Any], response: httpx.Response, tokens: Tokens | None) -> Answer:
    timing_ms = {}
    for entry in response.headers.get("Server-Timing", "").split(","):
        stage, _, duration = entry.strip().partition(";dur=")
        if duration:
            timing_ms[stage] = float(duration)
    return Answer(name, outputs, timing_ms, response.headers.get("X-Request-ID"), tokens)
