"""Heat maps as one HTML file that needs nothing else: a matrix at a time, with the weight under the pointer."""

import base64
import json
from html import escape
from importlib.resources import files
from pathlib import Path

from heed_client.matrix import Matrices

MOST = 1 << 24  # numbers in one page, 64 MiB


def page(found: Matrices, title: str, path: str) -> None:
    """Write the page.

    Raises:
        ValueError: more numbers than a browser takes.
        OSError: it cannot be written.
    """
    if found.weights.size > MOST:
        raise ValueError(f"{found.weights.size:,} weights are more than {MOST:,}: choose some with --at")
    low, top = found.range
    data = {
        "names": found.names,
        "shape": found.weights.shape,
        "range": [low, top],
        "queries": found.queries,
        "keys": found.keys,
        "weights": base64.b64encode(found.weights.astype("<f4").tobytes()).decode(),
    }
    text = (files("heed_client") / "page.html").read_text(encoding="utf-8")
    safe = json.dumps(data).replace("<", "\\u003c")
    Path(path).write_text(text.replace("$TITLE", escape(title)).replace("$DATA", safe), encoding="utf-8")
