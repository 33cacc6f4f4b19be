"""Words of errors and log lines: sizes in units that people read, names that may be meant, texts of bounded length."""

import json
from collections.abc import Collection
from difflib import get_close_matches

MAX_NAME_LENGTH, MIN_SIMILARITY = 64, 0.75  # of an unknown name that may be a misspelt one; difflib's ratio
MAX_CANDIDATES = 1000  # names that are compared; some milliseconds
CUT = " [...] "  # in a text that is shortened
UNITS = ((1 << 30, "GiB", 1 << 30), ((1 << 20) // 10, "MiB", 1 << 20))  # from how many bytes on


def closest(name: str, known: Collection[str]) -> str | None:
    """The ``known`` name whose spelling is closest to ``name``, in any case; None if none is close."""
    if len(name) > MAX_NAME_LENGTH or len(known) > MAX_CANDIDATES:
        return None
    by_plain = {_plain(other): other for other in reversed([*known])}
    matches = get_close_matches(_plain(name), by_plain, 1, MIN_SIMILARITY)
    return by_plain[matches[0]] if matches else None


def did_you_mean(name: str, known: Collection[str]) -> str:
    """``"; did you mean 'query'?"``, to follow an error's text; empty if no known name is close to ``name``."""
    likely = closest(name, known)
    return f"; did you mean '{likely}'?" if likely else ""


def counted(count: int, noun: str) -> str:
    """``1 request``, ``2 requests``"""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def size_words(size: int, decimals: int = 1) -> str:
    """A number of bytes in MiB or GiB, or in bytes where it is less than 0.1 MiB."""
    for least, unit, of in UNITS:
        if size >= least:
            return f"{size / of:,.{decimals}f}".removesuffix("." + "0" * decimals) + f" {unit}"
    return counted(size, "byte")


def sizes_words(size: int, limit: int) -> tuple[str, str]:
    """A size that exceeds its ``limit``, and the limit, with enough decimals to differ."""
    for decimals in (1, 3):
        words = size_words(size, decimals), size_words(limit, decimals)
        if words[0] != words[1]:
            return words
    return counted(size, "byte"), counted(limit, "byte")


def seconds_words(seconds: float) -> str:
    """A time in whole seconds, or with two digits where it is less than 10 seconds."""
    return f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.2g}"


def shortened(text: str, max_bytes: int) -> str:
    """The text; only its beginning and end if its JSON would exceed ``max_bytes`` bytes."""
    if len(text) <= max_bytes // 12:  # a character takes at most 12 bytes
        return text
    short, kept = text[: max_bytes + 1], max_bytes
    while len(json.dumps(short)) > max_bytes:
        kept = kept * 7 // 8
        short = f"{text[: kept - kept // 4]}{CUT}{text[-(kept // 4) :]}"
    return short


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")
