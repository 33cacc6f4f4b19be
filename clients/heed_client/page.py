"""Heat maps as a self-contained HTML page: one matrix at a time, with the weight under the pointer."""

import base64
import json
from html import escape
from importlib.resources import files
from pathlib import Path

from heed_client.matrix import Matrices

MAX_WEIGHTS = 1 << 24  # in a page, 64 MiB


def page(matrices: Matrices, title: str, path: str) -> None:
    """Write the page to ``path``.

    Raises:
        ValueError: there are more weights than a browser can show.
        OSError: the file cannot be written.
    """
    if matrices.weights.size > MAX_WEIGHTS:
        raise ValueError(f"{matrices.weights.size:,} weights are more than {MAX_WEIGHTS:,}: choose some with --at")
    data = {
        "names": matrices.names,
        "shape": matrices.weights.shape,
        "range": matrices.range,
        "queries": matrices.queries,
        "keys": matrices.keys,
        "weights": base64.b64encode(matrices.weights.astype("<f4").tobytes()).decode(),
    }
    text = (files("heed_client") / "page.html").read_text(encoding="utf-8")
    safe = json.dumps(data).replace("<", "\\u003c")
    Path(path).write_text(text.replace("$TITLE", escape(title)).replace("$DATA", safe), encoding="utf-8")
