"""Attention as a self-contained page: the viewer with the weights, without a server or the internet."""

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

VIEWER = Path(__file__).parent / "viewer"
WITHOUT = ("vendor/katex.js",)  # only the server's page has formulas
EXACT = 1 << 20  # up to this number, weights are float32; more are uint8
LEVEL = 4  # of zlib: three times as fast as 6, for a twentieth more bytes
MAX_WEIGHTS = 1 << 28  # 256 MiB in the browser
FONT = "vendor/fonts/Inter.woff2"  # as the style has it
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; "
    "img-src blob: data:; font-src data:"
)
FRAME = '<iframe title="{title}" srcdoc="{page}" style="width: 100%; height: {height}px; border: 0"></iframe>'


def page(
    weights: np.ndarray,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    title: str = "Attention weights",
    *,
    axis: str = "layer",
    special: Sequence[bool] = (),
    settings: Mapping[str, Any] | None = None,
    about: Mapping[str, str] | None = None,
) -> str:
    """The HTML of the page.

    Args:
        weights: [m, n], [heads, m, n], [layers, heads, m, n], or [layers, 1, heads, m, n]. More than a million are
            rounded to 256 levels.
        rows: labels of the queries; by default their positions.
        columns: labels of the keys; by default those of the queries if m = n.
        axis: name of the first of four axes.
        special: which tokens begin, separate or end texts.
        settings: the initial settings of the page, as in the fragment of its URL: ``{"view": "matrix", "head": 3}``.
        about: the origin of the weights, which is shown at the top of the page: ``{"model": "bert, version 1"}``.

    Raises:
        ValueError: there are several rows of a batch, or more weights than a browser can show, or labels do not fit.
    """
    stacked = _stacked(np.asarray(weights))
    layers, heads, m, n = stacked.shape
    if stacked.size > MAX_WEIGHTS:
        raise ValueError(
            f"expected at most {MAX_WEIGHTS:,} weights, got {stacked.size:,}; select fewer layers, heads or queries"
        )
    numbers, dtype, unit = _levels(stacked)
    is_self = m == n and (not columns or list(columns) == list(rows))
    data = {
        "title": title,
        "kind": "weights",
        "axis": axis,
        "shape": [layers, heads, m, n],
        "dtype": dtype,
        "unit": unit,
        "rows": _labels("queries", rows, m, special),
        "columns": None if is_self else _labels("keys", columns, n, special if m == n else ()),
        "weights": base64.b64encode(zlib.compress(numbers.tobytes(), LEVEL)).decode(),
        "about": {name: value for name, value in (about or {}).items() if value},
        "settings": {"view": "model" if layers * heads > 1 else "matrix", **(settings or {})},
    }
    return _document(data, title)


def frame(document: str, title: str, height: int = 760) -> str:
    """The page in a frame, as notebooks show it."""
    return FRAME.format(title=escape(title), page=escape(document), height=height)


def _stacked(weights: np.ndarray) -> np.ndarray:
    """``weights`` as [layers, heads, m, n]."""
    if weights.ndim == 5 and weights.shape[1] == 1:
        return weights[:, 0]
    if weights.ndim > 4:
        raise ValueError(f"at: select one of the {weights.shape[1]} rows of the batch")
    if weights.ndim < 2 or weights.size == 0:
        raise ValueError(f"weights: expected [..., m, n], got {list(weights.shape)}")
    return weights.reshape((1,) * (4 - weights.ndim) + weights.shape)


def _levels(weights: np.ndarray) -> tuple[np.ndarray, str, float]:
    """The numbers of the page, their type, and their scale."""
    top = float(weights.max())
    if weights.size <= EXACT or not np.isfinite(weights).all() or float(weights.min()) < 0 or top == 0:
        return weights.astype("<f4"), "float32", 1.0
    levels = np.empty(weights.shape, np.uint8)
    for layer, part in zip(levels, weights, strict=True):  # the product takes the memory of one layer
        layer[:] = np.rint(part.astype(np.float32) * np.float32(255 / top))
    return levels, "uint8", top / 255


def _labels(axis: str, words: Sequence[str], count: int, special: Sequence[bool]) -> list[dict[str, Any]]:
    if words and len(words) != count:
        raise ValueError(f"labels: expected {count}, one for each of the {axis}, got {len(words)}")
    marks = special if len(special) == count else [False] * count
    texts = words or [str(place) for place in range(count)]
    return [
        {"text": text, "special": bool(mark), "padding": False, "part": 0}
        for text, mark in zip(texts, marks, strict=True)
    ]


def _document(data: Mapping[str, Any], title: str) -> str:
    """index.html, with its modules as data: URLs, its style and the data inside."""
    imports = {
        path if path.startswith("vendor/") else f"heed/{path}": f"data:text/javascript;base64,{_base64(VIEWER / path)}"
        for path in sorted(path.relative_to(VIEWER).as_posix() for path in VIEWER.rglob("*.js"))
        if path not in WITHOUT
    }
    safe = json.dumps(data).replace("<", "\\u003c")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    style = (VIEWER / "style.css").read_text("utf-8").replace(FONT, f"data:font/woff2;base64,{_base64(VIEWER / FONT)}")
    start = '<script type="module">import "heed/main.js";</script>'
    replacements = {
        "<title>Heed</title>": f"<title>{escape(title)}</title>\n{policy}",
        '<link rel="icon" href="./viewer/icon.svg?v=$VERSION">\n': "",
        f'<link rel="preload" href="./viewer/{FONT}" as="font" type="font/woff2" crossorigin>\n': "",
        '<link rel="stylesheet" href="./viewer/style.css">': f"<style>{style}</style>",
        "$IMPORTS": json.dumps({"imports": imports}),
        '<script type="module" src="./viewer/main.js"></script>': f"{start}\n"
        f'<script type="application/json" id="data">{safe}</script>',
    }
    document = (VIEWER / "index.html").read_text("utf-8")
    assert all(document.count(old) == 1 for old in replacements)
    return re.sub("|".join(map(re.escape, replacements)), lambda match: replacements[match[0]], document)


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
