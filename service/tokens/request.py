"""The fields of a request with texts, and the tensors that a model's tokenizer makes of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from service.base.cost import UNKNOWN, AssumedCost, CostModel
from service.base.errors import Invalid, Malformed, TooLarge
from service.base.messages import counted, sizes_words
from service.base.steps import drain
from service.codec.json_parser import JsonArray
from service.codec.json_reader import JsonReader, describe
from service.codec.json_slices import LongText
from service.codec.json_writer import write_json
from service.http.response import JOIN_LIMIT_BYTES
from service.model.model import Model
from service.tokens.next_tokens import FIELD as NEXT_TOKENS
from service.tokens.next_tokens import read_count
from service.tokens.tokenizer import JsonRow, Text, TokenizedTexts, Tokenizer

FIELDS = ("text", "text_pair", "text_target", "truncation", "add_special_tokens")
MAX_TEXTS = 1024  # of a request
MAX_ESCAPE_BYTES = 6  # of JSON for one byte of text
TOKENIZING_BYTES = 768  # memory for each byte of text: there may be a token for each
TOKEN_BYTES = 80  # memory for each token, padding too, as arrays and as JSON
TEXT_NS = 250  # to tokenize a byte of text; where each is a token, six times as many
TOKEN_NS = 50  # of a token, padding too, as an array and as JSON
NORMALIZING = AssumedCost(0, 350)  # of bytes of texts that are normalized first
SPECIAL_TOKENS = 8  # of a text, at most
MASKS = {"attention_mask": 1, "token_type_ids": 0}  # tensors beside the token ids -> the value that changes nothing
DECODER = "decoder_"


@dataclass(frozen=True)
class TextFields:
    """The texts of a request and how they become tokens. ``is_single``: one text, whose answer has no batch axis."""

    texts: Mapping[str, Sequence[Text]]  # by the prefix of their tensors: "" or DECODER
    is_single: bool
    truncation: bool | None  # None = as the tokenizer's file says
    special_tokens: bool
    next_tokens: int = 0  # how many to answer for each text

    @cached_property
    def size(self) -> int:
        """The bytes of all texts as UTF-8."""
        return sum(_size(text) for texts in self.texts.values() for text in texts)


class TokenizingNeeds(NamedTuple):
    """Upper bound in bytes on the memory of tokenizing, and the nanoseconds that a cost model assumes at least.

    Texts of as many bytes differ by the number of their tokens, which is not known before.
    """

    memory: int
    work: int


def measuring(
    requests: Sequence[TextFields], model: Model, max_bytes: int, field: str = "text"
) -> tuple[CostModel, int, Callable[[], TokenizingNeeds]]:
    """The stage ``tokenizing_needs``: its cost, its size in bytes of texts that may be lengthened, and its work."""
    work = partial(tokenizing_needs, requests, model, max_bytes, field)
    texts = [text for one in requests for several in one.texts.values() for text in several]
    if not texts:
        return NORMALIZING, 0, work
    tokenizer = tokenizer_of(model)
    cost = UNKNOWN if tokenizer.has_regex else NORMALIZING
    return cost, sum(_size(text) for text in texts if tokenizer.may_lengthen(text)), work


def tokenizing_needs(
    requests: Sequence[TextFields], model: Model, max_bytes: int, field: str = "text"
) -> TokenizingNeeds:
    """The memory and time to tokenize the texts of ``requests`` to ``model``; each text is padded to the longest.

    Raises:
        Invalid: a text cannot be normalized.
        TooLarge: normalized, all texts together have more than ``max_bytes``.
    """
    size = tokens = 0
    for one in requests:
        tokenizer = tokenizer_of(model)
        for prefix, texts in one.texts.items():
            try:
                sizes = [*map(tokenizer.size, texts)]
            except Invalid as error:
                raise Invalid(str(error), field) from None
            size += sum(sizes)
            limit = model.max_tokens(f"{prefix}input_ids")
            added = map(tokenizer.added_tokens, texts)
            longest = max(map(sum, zip(sizes, added, strict=True))) + SPECIAL_TOKENS
            lengths = (longest, limit, tokenizer.cut_length(limit, one.truncation))
            tokens += len(texts) * min(length for length in lengths if length is not None)
    check_size(size, max_bytes, field, when=" after normalization")
    return TokenizingNeeds(size * TOKENIZING_BYTES + tokens * TOKEN_BYTES, size * TEXT_NS + tokens * TOKEN_NS)


def read_texts(reader: JsonReader, fields: Mapping[str, Any], model: Model, max_bytes: int) -> TextFields:
    """The texts and their options in ``fields``, of a request to ``model``.

    Raises:
        Invalid: there is no text, or a field of another type; ``field`` names it.
        TooLarge: more than ``max_bytes``.
    """
    texts, pairs, targets = (_texts(reader, fields, name, max_bytes) for name in ("text", "text_pair", "text_target"))
    if texts is None and targets is None:
        hint = f"; POST /v1/attention/{model.name} takes token ids" if "input_ids" in fields else ""
        raise Invalid(f"missing (required){hint}", "text" if "input_ids" in model.inputs else "text_target")
    for name, given, prefix in (("text", texts, ""), ("text_target", targets, DECODER)):
        if given is None:
            continue
        if (ids := f"{prefix}input_ids") not in model.inputs:
            raise Invalid(f"not accepted: model '{model.name}' has no input {ids}", name)
        for made in (ids, *(f"{prefix}{mask}" for mask in MASKS)):
            if fields.get(made) is not None:
                raise Malformed(f"cannot be given together with {name}, from which it is computed", made)
    for name, others in (("text_pair", pairs), ("text_target", targets)):
        if others is not None and texts is not None and _count(others) != _count(texts):
            raise Invalid(f"expected {_count(texts)}, as in text, got {_count(others)}", name)
    if pairs is not None and texts is None:
        raise Invalid("requires text", "text_pair")
    joined: Sequence[Text] = _list(texts) if pairs is None else [*zip(_list(texts), _list(pairs), strict=True)]
    result = TextFields(
        {prefix: given for prefix, given in (("", joined), (DECODER, _list(targets))) if given},
        isinstance(texts if texts is not None else targets, str),
        read_flag(fields, "truncation"),
        read_flag(fields, "add_special_tokens") is not False,
        read_count(fields.get(NEXT_TOKENS), model),
    )
    check_size(result.size, max_bytes, "text")
    return result


def tokenize(fields: TextFields, model: Model) -> dict[str, TokenizedTexts]:
    """The tokens of the texts, by the prefix of their tensors.

    Raises:
        Invalid: a text is too long, or cannot be encoded; ``field`` names it.
    """
    return {prefix: _encode(prefix, texts, fields, model) for prefix, texts in fields.texts.items()}


def tensors_of(tokenized: Mapping[str, TokenizedTexts], is_single: bool, model: Model) -> dict[str, np.ndarray]:
    """The tensors of the tokens for ``model``: [batch, n], or [n] of a single text.

    Those that would change nothing are left out, as a model is faster without them.
    """
    tensors = {}
    for prefix, texts in tokenized.items():
        tensors[f"{prefix}input_ids"] = texts.input_ids
        for name, neutral in MASKS.items():
            array: np.ndarray = getattr(texts, name)
            if f"{prefix}{name}" in model.inputs and (array != neutral).any():
                tensors[f"{prefix}{name}"] = array
    return {name: array[0] for name, array in tensors.items()} if is_single else tensors


def tokens_json(tokenized: Mapping[str, TokenizedTexts], is_single: bool, whole: bool = False) -> list[bytes]:
    """The fields of a response that describe the tokens, as JSON without braces, in pieces.

    With ``whole`` these are all fields of ``/v1/tokenize``.
    """
    content: dict[str, list[JsonRow] | np.ndarray] = {}
    for prefix, texts in tokenized.items():
        words = "target_" if prefix else ""
        content[f"{words}tokens"] = texts.tokens
        content[f"{words}offsets"] = texts.offsets
        content[f"{words}truncated"] = np.array(texts.truncated)
        content[f"{prefix}input_ids"] = texts.input_ids
        content[f"{prefix}attention_mask"] = texts.attention_mask
        if whole:
            content[f"{words}sequence_ids"] = texts.sequence_ids
            if not words:
                content["token_type_ids"] = texts.token_type_ids
    pieces: list[bytes] = []
    for name, rows in content.items():
        pieces.append(b'%b"%b":' % (b"," if pieces else b"", name.encode()))
        if isinstance(rows, np.ndarray):
            pieces += drain(write_json([b"", b""], [rows[0] if is_single else rows]))
        else:
            lists = [_json_list([piece] for piece in row) for row in rows]
            pieces += lists[0] if is_single else _json_list(lists)
    return pieces if sum(map(len, pieces)) > JOIN_LIMIT_BYTES else [b"".join(pieces)]


def tokenizer_of(model: Model, field: str = "text") -> Tokenizer:
    """The model's tokenizer, which ``field`` needs.

    Raises:
        Invalid: it has none.
    """
    if model.tokenizer is None:
        instead = "; /v1/attention and /v1/generate take token ids as input_ids" if "input_ids" in model.inputs else ""
        if model.spec is not None and not instead:
            raise Invalid(f"{model.name} has no tokenizer: it takes tensors, at /v1/attention/{model.name}", field)
        raise Invalid(
            f"model '{model.name}' has no tokenizer: it needs tokenizer.json next to its graph, and the service needs "
            f"the package tokenizers{instead}",
            field,
        )
    tokenizer: Tokenizer = model.tokenizer
    return tokenizer


def _texts(reader: JsonReader, fields: Mapping[str, Any], name: str, max_bytes: int) -> str | list[str] | None:
    """One text, or a list of them; None where there is none."""
    element = fields.get(name)
    if element is None:
        return None
    if isinstance(element, str | LongText):
        return decoded(element, name, max_bytes)
    if not isinstance(element, JsonArray):
        raise Invalid(f"expected text or a list of texts, got {describe(element)}", name)
    if not 0 < len(element) <= MAX_TEXTS:
        raise Invalid(f"expected 1 to {MAX_TEXTS} texts, got {len(element)}", name)
    items = [reader.part(item) for item in element]
    for index, item in enumerate(items):
        if not isinstance(item, str | LongText):
            raise Invalid(f"expected text, got {describe(item)} at [{index}]", name)
    return [decoded(item, name, max_bytes) for item in items]


def decoded(element: str | LongText, name: str, max_bytes: int) -> str:
    """A text.

    Raises:
        TooLarge: its JSON is longer than any of ``max_bytes`` of UTF-8.
        Malformed: an escape is not JSON's.
    """
    if isinstance(element, str):
        return element
    check_size(len(element.content) // MAX_ESCAPE_BYTES, max_bytes, name, "at least ")  # before it is copied
    content = bytes(element.content)
    check_size(_least_size(content), max_bytes, name, "at least ")
    try:
        return element.text()
    except ValueError:
        raise Malformed("a text has an invalid JSON escape sequence") from None


def _json_list(items: Iterable[list[bytes]]) -> list[bytes]:
    """A JSON list of ``items``, each of which is in pieces."""
    pieces = [b"["]
    for index, item in enumerate(items):
        pieces += [b",", *item] if index else item
    return [*pieces, b"]"]


def _least_size(content: bytes) -> int:
    """Lower bound on the bytes of a JSON text as UTF-8: an escape loses one byte, and one of six bytes up to five."""
    return len(content) - content.count(b"\\") - (MAX_ESCAPE_BYTES - 2) * content.count(b"\\u")


def check_size(size: int, max_bytes: int, name: str, quantifier: str = "", when: str = "") -> None:
    """Raises TooLarge: texts of ``size`` bytes are more than ``max_bytes``."""
    if size > max_bytes:
        got, most = sizes_words(size, max_bytes)
        limit = f"the limit is {most} (max_text_bytes)"
        raise TooLarge(f"the texts have {quantifier}{got}{when}; {limit}; send shorter or fewer texts", name)


def _size(text: Text) -> int:
    return len(text.encode()) if isinstance(text, str) else sum(map(_size, text))


def read_flag(fields: Mapping[str, Any], name: str) -> bool | None:
    """The boolean in the field ``name``; None where it is null or not given.

    Raises:
        Invalid: it is of another type.
    """
    value = fields.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise Invalid(f"expected a boolean, got {describe(value)}", name)


def _encode(prefix: str, texts: Sequence[Text], fields: TextFields, model: Model) -> TokenizedTexts:
    spec, start, limit = model.spec, None, model.max_tokens(f"{prefix}input_ids")
    assert spec is not None, "only blocks have texts"
    if prefix:
        start = spec.config.get("decoder_start_token_id")
        if start is None:
            raise Invalid(f"model '{model.name}' does not define the start token of its decoder", "text_target")
    try:
        encoded = tokenizer_of(model).encode(texts, limit, fields.truncation, fields.special_tokens, start)
    except Invalid as error:
        raise Invalid(str(error), "text_target" if prefix else "text") from None
    if f"{prefix}attention_mask" not in model.inputs and not encoded.attention_mask.all():
        raise Invalid("this model has no attention_mask, so all texts must have the same number of tokens", "text")
    return encoded


def _list(texts: str | list[str] | None) -> list[str]:
    return [texts] if isinstance(texts, str) else texts or []


def _count(texts: str | list[str]) -> str:
    return "one text" if isinstance(texts, str) else f"a list of {counted(len(texts), 'text')}"
