"""Text of bounded length, for errors and log lines that quote what clients sent."""

import json

CUT = " [...] "


def shortened(text: str, max_bytes: int) -> str:
    """The text; only its beginning and end if its JSON would exceed ``max_bytes`` bytes."""
    if len(text) <= max_bytes // 12:  # a character takes at most 12 bytes
        return text
    short, kept = text[: max_bytes + 1], max_bytes
    while len(json.dumps(short)) > max_bytes:
        kept = kept * 7 // 8
        short = f"{text[: kept - kept // 4]}{CUT}{text[-(kept // 4) :]}"
    return short
