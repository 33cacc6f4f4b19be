"""A model's tokenizer, from its tokenizer.json: texts to token ids.

The library is written in Rust and releases the interpreter's lock while it encodes a batch of texts. It holds the lock
while it converts its results to Python lists, so long results are converted in pieces.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import orjson

from service.base.errors import Invalid
from service.model.spec import Placeholder
from service.tokens.growing_text import GrowingText

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # read by the library; a request uses one thread

log = logging.getLogger("heed")

TOKENIZER_FILE = "tokenizer.json"
MAX_PIECE_TOKENS = 1 << 13  # converted in one call; about a millisecond
MAX_PIECE_CHARACTERS = 1 << 12  # normalized in one call, of which the library keeps up to 200 bytes each
KEEP_ASCII = {  # normalizers that do not lengthen ASCII
    *("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Strip", "StripAccents")
}
BLANK = "▁"  # stands for a blank, and is one token
T = TypeVar("T")
Span = tuple[int, int]
Text = str | tuple[str, str]  # alone, or a pair
JsonRow = list[bytes]  # the elements of a JSON list, some in each piece, without brackets


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """Texts as token ids, padded to the longest: batch is their number, n the length with padding.

    ``tokens`` are texts; ``offsets`` are the first and the last character plus 1 of each token in its own text, in
    Unicode code points; ``sequence_ids`` say in which of a pair it is: 0, 1, or null for special tokens and padding.
    """

    input_ids: np.ndarray  # [batch, n] int64
    attention_mask: np.ndarray  # [batch, n] int64, 1 = a token, 0 = padding
    token_type_ids: np.ndarray  # [batch, n] int64
    tokens: list[JsonRow]
    offsets: list[JsonRow]
    sequence_ids: list[JsonRow]
    truncated: list[bool]


class _Piece(NamedTuple):
    """Some tokens of a text: numbers, and elements of JSON lists without brackets."""

    ids: np.ndarray
    type_ids: np.ndarray
    tokens: bytes
    offsets: bytes
    sequence_ids: bytes


class Tokenizer:
    """The tokenizer in ``file``. Padding and truncation are as the file says, but padding ends with the longest text.

    A token that is a ``placeholder`` becomes as many of them as stand for one row of an input.

    Raises:
        ModuleNotFoundError: the package tokenizers is not installed.
        ValueError: the file is broken.
    """

    def __init__(self, file: Path, placeholder: Placeholder | None = None) -> None:
        import tokenizers

        whole = _call(lambda: tokenizers.Tokenizer.from_file(str(file)))
        self._truncation = whole.truncation or {}
        self.max_length: int | None = self._truncation.get("max_length")  # to which the file truncates
        padding = whole.padding or {}
        self._pad = padding.get("pad_id", 0), padding.get("pad_type_id", 0), padding.get("pad_token", "[PAD]")
        self._pads_left = padding.get("direction") == "left"
        whole.no_padding()
        whole.no_truncation()
        self._whole: tokenizers.Tokenizer = whole
        parts = _parts(orjson.loads(whole.normalizer.__getstate__())) if whole.normalizer else []
        self._keeps_ascii = {part["type"] for part in parts} <= KEEP_ASCII
        self.has_regex = any("Regex" in part.get("pattern", ()) for part in parts)  # in the normalizer: of unknown time
        self._placeholder = placeholder

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
            decoder_start: the token with which a decoder begins. The tokens are then its input: this one first, and
                without the last, which it predicts.

        Raises:
            Invalid: a text is longer and not truncated, is empty, or cannot be encoded. No field is named.
        """
        longest, advice = self.cut_length(limit, truncation), "set truncation to true to cut it"
        if any(map(self.added_tokens, texts)):
            limit, longest = min((most for most in (limit, longest) if most is not None), default=None), None
            advice = "a text with pictures is not truncated"
        encodings = self._encode(texts, special_tokens)
        kept = [None if longest is None or len(one) <= longest else self._kept(one, longest) for one in encodings]
        for index, (encoding, spans) in enumerate(zip(encodings, kept, strict=True)):
            # before any list of its tokens is made, for which the interpreter's lock is held
            count = len(encoding) if spans is None else sum(stop - start for start, stop in spans)
            if limit is not None and (length := count + self._added(encoding)) > limit:
                raise Invalid(f"expected at most {limit} tokens, got {length}{_place(index, encodings)}; {advice}")
            if all(encoding.special_tokens_mask):
                raise Invalid("expected text, got an empty or blank string" + _place(index, encodings))
        rows = [self._row(one, spans, decoder_start) for one, spans in zip(encodings, kept, strict=True)]
        return self._padded(rows, [spans is not None for spans in kept])

    def size(self, text: Text) -> int:
        """The bytes of ``text`` as UTF-8, or normalized if they are more then: NFKC makes 18 characters of one.

        Raises:
            Invalid: it cannot be normalized.
        """
        if not isinstance(text, str):
            return sum(map(self.size, text))
        size, normalizer = len(text.encode()), self._whole.normalizer
        if not self.may_lengthen(text):
            return size
        starts = range(0, len(text), MAX_PIECE_CHARACTERS)
        pieces = (text[start : start + MAX_PIECE_CHARACTERS] for start in starts)
        normalized = (_encoded(partial(normalizer.normalize_str, piece)) for piece in pieces)
        return max(size, sum(len(piece.replace(BLANK, " ").encode()) for piece in normalized))

    def may_lengthen(self, text: Text) -> bool:
        """Whether normalization may lengthen ``text``."""
        if not isinstance(text, str):
            return any(map(self.may_lengthen, text))
        return self._whole.normalizer is not None and not (self._keeps_ascii and text.isascii())

    def added_tokens(self, text: Text) -> int:
        """Upper bound on the tokens that placeholders in ``text`` become, beyond themselves."""
        name = self._placeholder and self.token(self._placeholder.token)
        if not self._placeholder or not name:
            return 0
        count = text.count(name) if isinstance(text, str) else sum(one.count(name) for one in text)
        return count * (self._placeholder.count - 1)

    def _added(self, encoding: Any) -> int:
        """The tokens that the placeholders of ``encoding`` become, beyond themselves."""
        one = self._placeholder
        return encoding.ids.count(one.token) * (one.count - 1) if one else 0

    def token(self, index: int) -> str | None:
        """The token with this id; None where there is none."""
        token: str | None = self._whole.id_to_token(index)
        return token

    @cached_property
    def unknown_token(self) -> str | None:
        """The token that stands for what is not in the vocabulary; None if there is none, or in a Unigram model."""
        return getattr(self._whole.model, "unk_token", None)

    def text_of_tokens(self) -> Callable[[int], str]:
        """A function that takes one token id after the other, and returns the text that it adds.

        Special tokens add none, nor does a token that ends within a character.
        """
        return GrowingText(self._whole, self._special).add

    @cached_property
    def _special(self) -> frozenset[int]:
        added = self._whole.get_added_tokens_decoder()
        return frozenset(index for index, token in added.items() if token.special)

    def cut_length(self, limit: int | None, truncation: bool | None) -> int | None:
        """The number of tokens to which longer texts are truncated; None = they are not. Arguments as of ``encode``."""
        if truncation is False or (truncation is None and self.max_length is None):
            return None
        return min((most for most in (self.max_length, limit) if most is not None), default=None)

    def _encode(self, texts: Sequence[Text], special_tokens: bool) -> list[Any]:
        """The library's encodings of whole ``texts``.

        It does not truncate them: it would keep the rest in pieces, of a pair each of the one with each of the other.

        Raises:
            Invalid: one cannot be encoded.
        """
        return _encoded(lambda: self._whole.encode_batch([*texts], add_special_tokens=special_tokens))

    def _kept(self, encoding: Any, longest: int) -> list[Span]:
        """The tokens that are left of an encoding with more than ``longest``, from the first to before the last of each
        span: special ones, and the first or last ones of each text, as many as the library would leave.

        Raises:
            Invalid: there is no room for them.
        """
        sequence_ids = encoding.sequence_ids
        counts = [sequence_ids.count(index) for index in range(2)]
        room = longest - (len(encoding) - sum(counts))
        left = _left(counts, room, self._truncation.get("strategy", "longest_first")) if room > 0 else None
        if left is None:
            raise Invalid(f"the model's tokenizer cannot truncate it to {longest} tokens; send a shorter text")
        spans, place = list[Span](), 0
        for index, (count, few) in enumerate(zip(counts, left, strict=True)):
            if few < count:
                first = sequence_ids.index(index)
                cut = first + few if self._truncation.get("direction", "right") == "right" else first
                spans.append((place, cut))
                place = cut + count - few
        return [(start, stop) for start, stop in [*spans, (place, len(encoding))] if start < stop]

    def _row(self, encoding: Any, kept: list[Span] | None, decoder_start: int | None) -> list[_Piece]:
        """The tokens of ``encoding`` that are ``kept``, or a decoder's input of them. ``encoding`` is consumed."""
        sequence_ids = encoding.sequence_ids  # those of its pieces are not known
        spans = kept or [(0, len(encoding))]
        row: list[_Piece] = []
        if decoder_start is not None:
            begins = encoding.ids[spans[0][0]] == decoder_start
            if not begins:
                row.append(_piece([decoder_start], [0], [self.token(decoder_start) or ""], [(0, 0)], [None]))
            if not begins or sum(stop - start for start, stop in spans) > 1:
                spans = [*spans[:-1], (spans[-1][0], spans[-1][1] - 1)]
        encodings = [encoding]
        if len(encoding) > MAX_PIECE_TOKENS:
            encoding.truncate(MAX_PIECE_TOKENS)
            encodings += encoding.overflowing
        place = 0
        while encodings:
            part = encodings.pop(0)  # freed one at a time
            size = len(part)
            for start, stop in spans:
                first, end = max(start - place, 0), min(stop - place, size)
                if first < end:
                    lists = part.tokens[first:end], part.offsets[first:end], sequence_ids[place + first : place + end]
                    row += self._pieces(part.ids[first:end], part.type_ids[first:end], *lists)
            place += size
        return row

    def _pieces(self, ids: list[int], *lists: list[Any]) -> Iterator[_Piece]:
        """The tokens with these ids, of which a placeholder is a piece of its own; ``lists`` are as of ``_piece``."""
        one, start = self._placeholder, 0
        if one is None or one.token not in ids:
            yield _piece(ids, *lists)
            return
        for place in [place for place, token in enumerate(ids) if token == one.token]:
            if place > start:
                yield _piece(ids[start:place], *(elements[start:place] for elements in lists))
            type_id, *others = (elements[place] for elements in lists)
            yield _repeated(one.count, one.token, type_id, *others)
            start = place + 1
        if start < len(ids):
            yield _piece(ids[start:], *(elements[start:] for elements in lists))

    def _padded(self, rows: Sequence[list[_Piece]], truncated: list[bool]) -> TokenizedTexts:
        """``rows`` with the same length."""
        lengths = [sum(len(piece.ids) for piece in row) for row in rows]
        longest = max(lengths)
        padding = {length: _repeated(longest - length, *self._pad, (0, 0), None) for length in {*lengths} - {longest}}
        for row, length in zip(rows, lengths, strict=True):
            if length < longest:
                row.insert(0 if self._pads_left else len(row), padding[length])
        places = np.arange(longest)
        mask = (places[::-1] if self._pads_left else places) < np.array(lengths)[:, None]

        def array(name: str) -> np.ndarray:
            result = np.empty((len(rows), longest), np.int64)
            for target, row in zip(result, rows, strict=True):
                np.concatenate([getattr(piece, name) for piece in row], out=target)
            return result

        return TokenizedTexts(
            array("ids"),
            mask.astype(np.int64),
            array("type_ids"),
            [[piece.tokens for piece in row] for row in rows],
            [[piece.offsets for piece in row] for row in rows],
            [[piece.sequence_ids for piece in row] for row in rows],
            truncated,
        )


def _repeated(count: int, token: int, type_id: int, *elements: Any) -> _Piece:
    """The same token so many times; ``elements`` are its token, offsets and sequence id."""
    ids, type_ids = (np.full(count, number, np.int64) for number in (token, type_id))
    json = (orjson.dumps(element) for element in elements)
    return _Piece(ids, type_ids, *(((one + b",") * count)[:-1] for one in json))


def _piece(ids: list[int], type_ids: list[int], *lists: Sequence[Any]) -> _Piece:
    """The tokens with these ids; ``lists`` are their tokens, offsets and sequence ids."""
    json = (orjson.dumps(elements)[1:-1] for elements in lists)
    return _Piece(np.array(ids, np.int64), np.array(type_ids, np.int64), *json)


def load_tokenizer(folder: Path, placeholder: Placeholder | None = None) -> Tokenizer | None:
    """The tokenizer in ``folder``; None if there is none, or if the package tokenizers is not installed.

    That of a model with a ``placeholder`` repeats this token.

    Raises:
        ValueError: its file is broken.
    """
    file = folder / TOKENIZER_FILE
    if not file.is_file():
        return None
    try:
        return Tokenizer(file, placeholder)
    except ModuleNotFoundError:
        advice = "pip install 'heed-attention[text]'"
        log.warning("%s: texts are not accepted, because the package tokenizers is not installed: %s", file, advice)
        return None
    except ValueError as error:
        raise ValueError(f"{TOKENIZER_FILE} cannot be loaded: {error}") from None


def _encoded(function: Callable[[], T]) -> T:
    """The result of a function of the library on a text.

    Raises:
        Invalid: it failed.
    """
    try:
        return _call(function)
    except ValueError as error:
        raise Invalid(f"the model's tokenizer cannot encode it: {error}") from None


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


def _left(counts: Sequence[int], room: int, strategy: str) -> list[int] | None:
    """How many tokens of a text, or of both of a pair, the library leaves where there is ``room`` for fewer than all
    ``counts``; None if it cannot."""
    first, second = counts
    if strategy in ("only_first", "only_second"):
        target = int(strategy == "only_second")
        left = counts[target] - (first + second - room)
        return None if left <= 0 else [left, second] if target == 0 else [first, left]
    less, more = sorted(counts)
    more = less if less > room else max(less, room - less)
    if less + more > room:
        less, more = room // 2, room - room // 2
    return [more, less] if first > second else [less, more]


def _parts(normalizer: dict[str, Any]) -> list[dict[str, Any]]:
    """A normalizer as in tokenizer.json, or those of which a sequence consists."""
    if "normalizers" not in normalizer:
        return [normalizer]
    return [part for one in normalizer["normalizers"] for part in _parts(one)]


def _place(index: int, encodings: Sequence[Any]) -> str:
    return f" in text {index}" if len(encodings) > 1 else ""
