"""A model's tokenizer, from its tokenizer.json: texts to token ids.

The library is written in Rust and releases the interpreter's lock while it works on a batch of texts.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from service.errors import Invalid

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # read by the library; a request uses one thread

if TYPE_CHECKING:
    import tokenizers

log = logging.getLogger("heed")

TOKENIZER_FILE = "tokenizer.json"
T = TypeVar("T")
Text = str | tuple[str, str]  # alone, or a pair


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """Texts as token ids, padded to the longest: batch is their number, n the length with padding.

    ``offsets`` are the first and the last character plus 1 of each token in its own text, in Unicode code points;
    ``sequence_ids`` say in which of a pair it is: 0, 1, or None for special tokens and padding.
    """

    input_ids: np.ndarray  # [batch, n] int64
    attention_mask: np.ndarray  # [batch, n] int64, 1 = a token, 0 = padding
    token_type_ids: np.ndarray  # [batch, n] int64
    tokens: list[list[str]]
    offsets: list[list[tuple[int, int]]]
    sequence_ids: list[list[int | None]]
    truncated: list[bool]


class Tokenizer:
    """The tokenizer in ``file``. Padding and truncation are as the file says, but padding ends with the longest text.

    Raises:
        ModuleNotFoundError: the package tokenizers is not installed.
        ValueError: the file is broken.
    """

    def __init__(self, file: Path) -> None:
        import tokenizers

        self._library = tokenizers
        whole: tokenizers.Tokenizer = _call(lambda: tokenizers.Tokenizer.from_file(str(file)))
        self._truncation = whole.truncation or {}
        self.max_length: int | None = self._truncation.get("max_length")  # to which the file truncates
        padding = whole.padding or {}
        self._pad_id: int = padding.get("pad_id", 0)
        self._pad_type_id: int = padding.get("pad_type_id", 0)
        self._pad_token: str = padding.get("pad_token", "[PAD]")
        self._pads_left = padding.get("direction") == "left"
        whole.no_padding()
        whole.no_truncation()
        self._by_length: dict[int | None, tokenizers.Tokenizer] = {None: whole}
        self._lock = threading.Lock()

    def encode(
        self,
        texts: Sequence[Text],
        limit: int | None,
        truncation: bool | None = None,
        special_tokens: bool = True,
        decoder_start: int | None = None,
    ) -> TokenizedTexts:
        """Tokenize ``texts``, of which there is at least one.

        Args:
            limit: the most tokens of a text that the model takes; None = any number.
            truncation: whether longer texts are truncated; None: as the file says.
            special_tokens: whether the tokens are added that begin, separate and end texts.
            decoder_start: the token with which a decoder begins. Tokens are then what it reads: this one first, and
                not the last, which it is to answer.

        Raises:
            Invalid: a text is longer and not truncated, is empty, or cannot be encoded. No field is named.
        """
        longest = self.cut_length(limit, truncation)
        encodings = self._encode(self._truncating(longest), list(texts), special_tokens)
        for index, encoding in enumerate(encodings):
            # before any list of its tokens is made, for which the interpreter's lock is held
            if limit is not None and len(encoding) > limit:
                raise Invalid(
                    f"expected at most {limit} tokens, got {len(encoding)}{_place(index, encodings)}; "
                    "truncation: true cuts it"
                )
            if all(encoding.special_tokens_mask):
                raise Invalid("expected text, got only blanks or nothing" + _place(index, encodings))
        return self._padded(encodings, decoder_start)

    def token(self, index: int) -> str | None:
        """The token with this id; None where there is none."""
        token: str | None = self._by_length[None].id_to_token(index)
        return token

    def cut_length(self, limit: int | None, truncation: bool | None) -> int | None:
        """The number of tokens to which longer texts are truncated; None = they are not. Arguments as of ``encode``."""
        if truncation is False or (truncation is None and self.max_length is None):
            return None
        return min((most for most in (self.max_length, limit) if most is not None), default=None)

    def _encode(self, tokenizer: "tokenizers.Tokenizer", texts: list[Any], special_tokens: bool) -> list[Any]:
        try:
            return _call(lambda: tokenizer.encode_batch(texts, add_special_tokens=special_tokens))
        except ValueError as error:
            raise Invalid(f"the model's tokenizer cannot encode it: {error}") from None

    def _truncating(self, length: int | None) -> "tokenizers.Tokenizer":
        """The tokenizer that truncates to ``length`` tokens. The library keeps that in the tokenizer itself."""
        with self._lock:
            tokenizer = self._by_length.get(length)
            if tokenizer is None:
                tokenizer = self._library.Tokenizer.from_str(self._by_length[None].to_str())
                options = {name: self._truncation[name] for name in ("strategy", "direction") if self._truncation}
                assert length is not None, "the one that does not truncate is there from the start"
                tokenizer.enable_truncation(length, **options)
                self._by_length[length] = tokenizer
            return tokenizer

    def _padded(self, encodings: Sequence[Any], decoder_start: int | None) -> TokenizedTexts:
        all_ids: list[list[int]] = [encoding.ids for encoding in encodings]  # the library makes a list each time

        def shifted(ids: list[int], values: list[T], start: T) -> list[T]:
            if decoder_start is None or ids == [decoder_start]:
                return values
            return values[:-1] if ids[0] == decoder_start else [start, *values[:-1]]

        def rows(of: Callable[[Any], list[T]], filler: T, start: T) -> list[list[T]]:
            own = [shifted(ids, of(encoding), start) for ids, encoding in zip(all_ids, encodings, strict=True)]
            longest = max(map(len, own))
            padding = [[filler] * (longest - len(row)) for row in own]
            pairs = zip(padding, own, strict=True) if self._pads_left else zip(own, padding, strict=True)
            return [first + second for first, second in pairs]

        first = decoder_start or 0
        begin = self.token(first) or ""
        return TokenizedTexts(
            np.array(rows(lambda encoding: encoding.ids, self._pad_id, first), np.int64),
            np.array(rows(lambda encoding: [1] * len(encoding), 0, 1), np.int64),
            np.array(rows(lambda encoding: encoding.type_ids, self._pad_type_id, 0), np.int64),
            rows(lambda encoding: encoding.tokens, self._pad_token, begin),
            rows(lambda encoding: encoding.offsets, (0, 0), (0, 0)),
            rows(lambda encoding: encoding.sequence_ids, None, None),
            [bool(encoding.overflowing) for encoding in encodings],
        )


def load_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer in ``folder``; None if there is none, or if the package tokenizers is not installed.

    Raises:
        ValueError: its file is broken.
    """
    file = folder / TOKENIZER_FILE
    if not file.is_file():
        return None
    try:
        return Tokenizer(file)
    except ModuleNotFoundError:
        log.warning("%s: texts are not accepted, as the package tokenizers is not installed (extra text)", file)
        return None
    except ValueError as error:
        raise ValueError(f"{TOKENIZER_FILE} cannot be loaded: {error}") from None


def _call(function: Callable[[], T]) -> T:
    """The result of a function of the library.

    Raises:
        ValueError: it failed. The library raises Exception itself, and its panics are no Exception at all.
    """
    try:
        return function()
    except Exception as error:
        raise ValueError(str(error).splitlines()[0] if str(error) else type(error).__name__) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(str(error).splitlines()[0]) from None


def _place(index: int, encodings: Sequence[Any]) -> str:
    return f" in text {index}" if len(encodings) > 1 else ""
