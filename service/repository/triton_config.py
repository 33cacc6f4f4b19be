"""A ``config.pbtxt`` beside a model's versions: Triton's configuration, which is ignored with a warning."""

import re
from pathlib import Path

CONFIG = "config.pbtxt"
SAME = ("name", "platform", "backend")  # they repeat the names of the folder and the file
FIELD = re.compile(r"^[a-z]\w*(?=\s*[:{\[])", re.MULTILINE)  # at the top: fields in others are indented


def fields(file: Path) -> list[str]:
    """The fields at the top of the configuration, but for ``SAME``; none where there is no such file."""
    try:
        text = file.read_text(errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"it cannot be read: {error.strerror}"]
    return [name for name in dict.fromkeys(FIELD.findall(text)) if name not in SAME]
