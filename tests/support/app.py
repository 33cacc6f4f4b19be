"""A small ASGI application that misbehaves as a test wants."""

import time
from typing import Any


class App:
    """Answers every POST with ``status`` and an empty JSON object.

    From the ``after``-th POST on it is itself: once, the whole process stands still for ``stall`` seconds; ``closing``
    ends each connection with its answer.
    """

    def __init__(self, status: int = 200, stall: float = 0, after: int = 1, closing: bool = False) -> None:
        self.status, self.stall, self.after, self.closing = status, stall, after, closing
        self.posts = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        self.posts += scope["method"] == "POST"
        mine = self.posts >= self.after
        if mine and self.stall:
            seconds, self.stall = self.stall, 0
            time.sleep(seconds)
        status = self.status if mine else 200
        headers = [(b"content-length", b"2")] + [(b"connection", b"close")] * self.closing
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})
