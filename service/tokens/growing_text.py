"""The text of tokens that come one after the other.

The library's ``DecodeStream`` fails where bytes that are no character are followed by others (``ByteFallback``, as of
Llama and Gemma, decodes the whole run anew), and decodes all tokens again as long as they make no character.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # what bytes are decoded to that are no character yet
MAX_PENDING = 8  # tokens without a whole character, after which their text is taken as it is


class GrowingText:
    """``silent`` tokens add nothing."""

    def __init__(self, tokenizer: "tokenizers.Tokenizer", silent: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._silent = silent
        self._ids: list[int] = []  # the last ones that gave text, as the next text depends on them, and those behind
        self._given = 0  # of these ids
        self._text = ""  # of the given ones

    def add(self, index: int) -> str:
        """The text that the next token adds: none where it ends within a character."""
        if index in self._silent or self._tokenizer.id_to_token(index) is None:
            return ""
        self._ids.append(index)
        text = self._tokenizer.decode(self._ids)
        is_whole = len(text) > len(self._text) and not text.endswith(INCOMPLETE)
        if not is_whole and len(self._ids) - self._given < MAX_PENDING:
            return ""
        added = text[len(self._text) :]
        self._ids = self._ids[self._given :]
        self._given, self._text = len(self._ids), self._tokenizer.decode(self._ids)
        return added
