"""A model's tokenizer, from its tokenizer.json: texts to token ids.

The library is written in Rust and releases the interpreter's lock while it encodes a batch of texts. It holds the lock
while it converts its results to Python lists, so long results are converted in pieces.
"""

import copy
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import orjson

from service.base.errors import Invalid
from service.model.spec import Placeholder
from service.tokens.growing_text import GrowingText

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # read by the library; a request uses one thread

if TYPE_CHECKING:
    import tokenizers

log = logging.getLogger("heed")

TOKENIZER_FILE = "tokenizer.json"
MAX_PIECE_TOKENS = 1 << 13  # converted in one call; about a millisecond
LONG_TEXT = 1 << 17  # characters; the tokens cut off a shorter text are freed in some milliseconds
PAIR_MARGIN = 64  # tokens of the longer text of a pair beyond those of the other
MAX_PAIRED_TOKENS = 1 << 20  # of all pieces that the library makes of a pair
T = TypeVar("T")
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

        whole: tokenizers.Tokenizer = _call(lambda: tokenizers.Tokenizer.from_file(str(file)))
        self._truncation = whole.truncation or {}
        self.max_length: int | None = self._truncation.get("max_length")  # to which the file truncates
        padding = whole.padding or {}
        self._pad = padding.get("pad_id", 0), padding.get("pad_type_id", 0), padding.get("pad_token", "[PAD]")
        self._pads_left = padding.get("direction") == "left"
        whole.no_padding()
        whole.no_truncation()
        self._by_length: dict[int | None, tokenizers.Tokenizer] = {None: whole}
        self._lock = threading.Lock()
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
        encodings, truncated = self._encode_all(texts, longest, special_tokens)
        for index, encoding in enumerate(encodings):
            # before any list of its tokens is made, for which the interpreter's lock is held
            if limit is not None and (length := len(encoding) + self._added(encoding)) > limit:
                raise Invalid(f"expected at most {limit} tokens, got {length}{_place(index, encodings)}; {advice}")
            if all(encoding.special_tokens_mask):
                raise Invalid("expected text, got an empty or blank string" + _place(index, encodings))
        return self._padded([self._row(encoding, decoder_start) for encoding in encodings], truncated)

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
        token: str | None = self._by_length[None].id_to_token(index)
        return token

    @cached_property
    def unknown_token(self) -> str | None:
        """The token that stands for what is not in the vocabulary; None if there is none, or in a Unigram model."""
        return getattr(self._by_length[None].model, "unk_token", None)

    def text_of_tokens(self) -> Callable[[int], str]:
        """A function that takes one token id after the other, and returns the text that it adds.

        Special tokens add none, nor does a token that ends within a character.
        """
        return GrowingText(self._by_length[None], self._special).add

    @cached_property
    def _special(self) -> frozenset[int]:
        added = self._by_length[None].get_added_tokens_decoder()
        return frozenset(index for index, token in added.items() if token.special)

    def cut_length(self, limit: int | None, truncation: bool | None) -> int | None:
        """The number of tokens to which longer texts are truncated; None = they are not. Arguments as of ``encode``."""
        if truncation is False or (truncation is None and self.max_length is None):
            return None
        return min((most for most in (self.max_length, limit) if most is not None), default=None)

    def _encode_all(
        self, texts: Sequence[Text], longest: int | None, special_tokens: bool
    ) -> tuple[list[Any], list[bool]]:
        """The library's encodings of ``texts``, truncated to ``longest`` tokens, and whether each was."""
        if longest is None or all(_characters(text) <= _most_characters(text, longest) for text in texts):
            encodings = self._encode(longest, texts, special_tokens)
            return encodings, [longest is not None and bool(encoding.overflowing) for encoding in encodings]
        pairs = [self._encode_long(text, longest, special_tokens) for text in texts]
        return [encoding for encoding, _ in pairs], [truncated for _, truncated in pairs]

    def _encode_long(self, text: Text, longest: int, special_tokens: bool) -> tuple[Any, bool]:
        """As ``_encode_all``, of one text or pair. The library makes pieces of ``longest`` tokens of what it cuts off,
        of a pair each piece of the one with each of the other, and holds the interpreter's lock to free them. So only
        the start of each text is truncated, if its tokens are those of the whole.

        Raises:
            Invalid: of a pair, whose start has other tokens, there would be too many pieces.
        """
        (whole,) = self._encode(None, [text], special_tokens)
        if len(whole) <= longest:
            return whole, False
        start = self._start(whole, text, longest)
        if start is not None:
            (encoding,) = self._encode(longest, [start], special_tokens)
            if len(encoding) == longest and _is_start(encoding, whole, isinstance(text, str)):
                return encoding, True
        if not isinstance(text, str):
            pieces = prod(2 * whole.sequence_ids.count(index) // longest + 1 for index in range(2))
            if pieces * longest > MAX_PAIRED_TOKENS:
                raise Invalid("the model's tokenizer cannot truncate a pair of such long texts; send shorter ones")
        del whole  # its memory is not needed twice
        (encoding,) = self._encode(longest, [text], special_tokens)
        return encoding, True

    def _start(self, whole: Any, text: Text, longest: int) -> Text | None:
        """The start of a text, or of both of a pair, of more tokens than are kept; None if it is not the start."""
        if self._truncation.get("direction", "right") != "right":
            return None
        if isinstance(text, str):
            span = whole.token_to_chars(2 * longest)
            return None if span is None else text[: span[1]]
        sequence_ids, starts = whole.sequence_ids, list[str]()
        counts = [sequence_ids.count(index) for index in range(2)]
        for index, one in enumerate(text):
            # The longer one stays the longer one, which keeps a token more where they are odd.
            kept = 2 * longest + (PAIR_MARGIN if counts[index] > counts[1 - index] else 0)
            if counts[index] > kept:
                one = one[: whole.token_to_chars(sequence_ids.index(index) + kept)[1]]
            starts.append(one)
        return starts[0], starts[1]

    def _encode(self, longest: int | None, texts: Sequence[Text], special_tokens: bool) -> list[Any]:
        """The library's encodings of ``texts``, truncated to ``longest`` tokens."""
        tokenizer = self._truncating(longest)
        try:
            return _call(lambda: tokenizer.encode_batch([*texts], add_special_tokens=special_tokens))
        except ValueError as error:
            raise Invalid(f"the model's tokenizer cannot encode it: {error}") from None

    def _truncating(self, length: int | None) -> "tokenizers.Tokenizer":
        """The tokenizer that truncates to ``length`` tokens. The library keeps that in the tokenizer itself."""
        with self._lock:
            tokenizer = self._by_length.get(length)
            if tokenizer is None:
                tokenizer = copy.deepcopy(self._by_length[None])
                options = {name: self._truncation[name] for name in ("strategy", "direction") if self._truncation}
                assert length is not None, "the one that does not truncate is there from the start"
                tokenizer.enable_truncation(length, **options)
                self._by_length[length] = tokenizer
            return tokenizer

    def _row(self, encoding: Any, decoder_start: int | None) -> list[_Piece]:
        """The tokens of ``encoding``, or a decoder's input of them. ``encoding`` is consumed."""
        sequence_ids = encoding.sequence_ids  # those of its pieces are not known
        left, encodings = len(encoding), [encoding]
        row: list[_Piece] = []
        if left > MAX_PIECE_TOKENS:
            encoding.truncate(MAX_PIECE_TOKENS)
            encodings += encoding.overflowing
        if decoder_start is not None:
            begins = encoding.ids[0] == decoder_start
            if not begins:
                row.append(_piece([decoder_start], [0], [self.token(decoder_start) or ""], [(0, 0)], [None]))
            if not begins or left > 1:
                left -= 1
        place = 0
        while encodings and place < left:
            part = encodings.pop(0)  # freed one at a time
            end = min(place + len(part), left)
            count = end - place
            lists = part.tokens[:count], part.offsets[:count], sequence_ids[place:end]
            row += self._pieces(part.ids[:count], part.type_ids[:count], *lists)
            place = end
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


def _characters(text: Text) -> int:
    return len(text) if isinstance(text, str) else sum(map(len, text))


def _most_characters(text: Text, longest: int) -> int:
    """The characters up to which a text is truncated to ``longest`` tokens at once."""
    return LONG_TEXT if isinstance(text, str) else 4 * longest


def _is_start(start: Any, whole: Any, is_single: bool) -> bool:
    """Whether the tokens of an encoding, but for special ones, are the first ones of the text or pair ``whole``."""
    ids, start_ids, sequence_ids = whole.ids, start.ids, start.sequence_ids
    of_whole = sequence_ids if is_single else whole.sequence_ids
    shifts = {index: of_whole.index(index) - sequence_ids.index(index) for index in {*sequence_ids} - {None}}
    return all(
        start_ids[place] == ids[place + shifts[index]]
        and start.token_to_chars(place) == whole.token_to_chars(place + shifts[index])
        for place, index in enumerate(sequence_ids)
        if index is not None
    )


def _place(index: int, encodings: Sequence[Any]) -> str:
    return f" in text {index}" if len(encodings) > 1 else ""
