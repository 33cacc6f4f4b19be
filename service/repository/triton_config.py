"""A ``config.pbtxt`` beside a model's versions: Triton's configuration, which is ignored with a warning."""

import re
from pathlib import Path

CONFIG = "config.pbtxt"
SAME = ("name", "platform", "backend")  # for a model.onnx they repeat what its folder says
TOKEN = re.compile(
    r"""\#[^\n]*                                        # a comment,
    | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'         # or a text, in which names and braces mean nothing
    | [{}\[\]<>]
    | [A-Za-z_]\w*(?=\s*[:{<\[])                        # the name of a field""",
    re.VERBOSE,
)


def fields(file: Path) -> list[str]:
    """The fields at the top of the configuration, but for ``SAME``; none where there is no such file."""
    try:
        text = file.read_text(errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"it cannot be read: {error.strerror}"]
    names: dict[str, None] = {}
    depth = 0
    for token in TOKEN.findall(text):
        if token in "{[<":
            depth += 1
        elif token in "}]>":
            depth -= 1
        elif depth == 0 and token[0] not in "#\"'":
            names[token] = None
    if depth:
        return ["it cannot be read: its braces do not match"]
    return [name for name in names if name not in SAME]
