"""A server's answer to a request to generate: tokens, and the events of a stream."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heed_client import native


@dataclass(frozen=True, eq=False)
class TokenLens:
    """What each layer would predict in place of a token: arrays [layers + 1, k] of token ids and probabilities.

    ``predicted`` has the tokens, None without a tokenizer, ``ranks`` [layers + 1] the rank of the token, 1 = likeliest.
    """

    indices: np.ndarray
    probabilities: np.ndarray
    ranks: np.ndarray
    predicted: list[list[str | None]] | None


@dataclass(frozen=True)
class GeneratedToken:
    """A token that a model has generated.

    ``text`` are the characters that it adds, ``offset`` their start and end in the whole text, and ``logprob`` is the
    logarithm of its probability before temperature and the other parameters. ``token`` is None if the tokenizer has
    none. ``next_tokens`` are the most probable tokens at this place, and ``lens`` has the predictions of each layer
    there, if they were requested.

    ``outputs`` are the requested outputs of the query that predicted it, as those of ``Answer``; they are attributes,
    too: ``token.weights``.
    """

    id: int
    token: str | None
    text: str
    offset: tuple[int, int]
    logprob: float
    next_tokens: list[dict[str, Any]] = field(repr=False)
    outputs: Mapping[str, Any] = field(repr=False, compare=False)
    lens: TokenLens | None = field(default=None, repr=False, compare=False)

    def __getattr__(self, name: str) -> Any:
        outputs = self.__dict__.get("outputs", {})
        if name.startswith("_") or name not in outputs:
            raise AttributeError(f"{name!r} is not of this token, which has {[*outputs]}; request it with outputs=")
        return outputs[name]

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.outputs})


def decode(fields: Mapping[str, Any], weights_dtype: str | None, quantized: bool) -> GeneratedToken:
    """A token from the server's JSON. Weights of uint8 become float32, or remain with their scale if ``quantized``."""
    outputs = dict(fields)
    id, token, text, offset, logprob = (outputs.pop(name) for name in ("id", "token", "text", "offset", "logprob"))
    next_tokens, ranks = outputs.pop("next_tokens", []), outputs.pop("ranks", [])
    lens = _lens(outputs.pop("lens"), ranks) if "lens" in outputs else None
    return GeneratedToken(
        id, token, text, tuple(offset), float("-inf") if logprob is None else logprob, next_tokens,
        native.decode(outputs, None, weights_dtype, quantized), lens,
    )  # fmt: skip


def _lens(fields: Mapping[str, Any], ranks: list[int]) -> TokenLens:
    probabilities = np.array(fields["probabilities"], np.float64)
    return TokenLens(
        np.array(fields["indices"], np.int64), probabilities, np.array(ranks, np.int64), fields.get("tokens")
    )


class Events:
    """Splits a body of server-sent events as Heed writes them: a line ``event``, a line ``data``, and an empty line.

    It splits bytes, since httpx's ``iter_lines`` also ends lines at characters that JSON may contain, such as U+2028.
    """

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[str, Any]]:
        """The names and the parsed data of the events that ``data`` completes."""
        start = max(0, len(self._rest) - 1)
        self._rest += data
        while (end := self._rest.find(b"\n\n", start)) >= 0:
            event = bytes(self._rest[:end])
            del self._rest[: end + 2]
            start = 0
            lines = dict(line.partition(b": ")[::2] for line in event.split(b"\n"))
            if b"data" in lines:
                yield lines[b"event"].decode(), json.loads(lines[b"data"])
