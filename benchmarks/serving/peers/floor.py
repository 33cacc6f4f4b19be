"""Baseline: a raw ASGI application that reads the body and sends a prepared response, chosen by path and body length.

It neither parses nor computes: its rate is the limit of uvicorn and the load generator. BENCH_ANSWERS is a folder with
the responses: <workload>/<format>/<length of the request in bytes>.
"""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["BENCH_ANSWERS"])
ANSWERS = {(f"/{file.parent.relative_to(FOLDER)}", int(file.name)): file.read_bytes() for file in FOLDER.glob("*/*/*")}


async def app(
    scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    if scope["type"] != "http":
        return
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    body = ANSWERS.get((scope["path"], len(b"".join(parts))))
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % len(body or b""))]
    await send({"type": "http.response.start", "status": 404 if body is None else 200, "headers": headers})
    await send({"type": "http.response.body", "body": body or b""})
