"""The tokenizer of a directory as one tokenizer.json, which the service reads without transformers.

transformers may read other files, or modify tokenizer.json. So the tokenizer that transformers loads is written, with
the padding and the truncation of the directory's files.
"""

import json
import warnings
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

TOKENIZER_FILE = "tokenizer.json"
FILES = (
    TOKENIZER_FILE, "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model",
    "source.spm",
)  # fmt: skip
SENTENCE_CONFIG = "sentence_bert_config.json"  # of sentence-transformers: the length to which texts are truncated


class NoTokenizer(Exception):
    """The directory's tokenizer cannot be one tokenizer.json; the message says why."""


def tokenizer_json(folder: Path) -> str | None:
    """The content of the tokenizer.json to write; None if the directory has no tokenizer.

    Raises:
        NoTokenizer: transformers cannot read it, or it is written in Python.
    """
    if not any((folder / name).is_file() for name in FILES):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # of many types
        raise NoTokenizer(
            f"transformers cannot read it: {(str(error).strip() or repr(error)).splitlines()[0]}"
        ) from None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise NoTokenizer(f"{type(tokenizer).__name__} is written in Python")
    padding = (tokenizer.pad_token, tokenizer.pad_token_id)
    if None in padding:  # any token will do, as the mask excludes it
        padding = (tokenizer.eos_token, tokenizer.eos_token_id)
    backend.no_padding()
    if None not in padding:
        token, index = padding
        backend.enable_padding(
            direction=tokenizer.padding_side, pad_token=token, pad_id=index, pad_type_id=tokenizer.pad_token_type_id
        )
    longest = _longest(folder)
    backend.no_truncation()
    if longest is not None:
        backend.enable_truncation(longest, direction=tokenizer.truncation_side)
    content: str = backend.to_str()
    return content


def _longest(folder: Path) -> int | None:
    """The number of tokens to which the directory's files truncate a text; None if they do not."""
    longest = _json(folder / SENTENCE_CONFIG).get("max_seq_length")
    if longest is None:
        longest = (_json(folder / TOKENIZER_FILE).get("truncation") or {}).get("max_length")
    return longest if isinstance(longest, int) and longest > 0 else None


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
