"""A connection of the server's protocol without a socket: what it answers to packets."""

import asyncio
import json
import re
from collections import Counter
from functools import cache

import uvicorn
from uvicorn.server import ServerState

from service.base.budget import MemoryBudget
from service.base.errors import Overloaded
from service.http.limits import LimitedProtocol
from service.settings import Settings
from service.telemetry.counters import RequestCounters
from service.telemetry.event_loop import EventLoopClock

MAX_HEAD_BYTES = 1024
SETTINGS = Settings(transfer_timeout_seconds=10)
ANSWER = re.compile(rb"HTTP/1\.1 (\d+) [^\r]*\r\n(.*?)\r\n\r\n", re.DOTALL)


async def echo(scope, receive, send) -> None:
    """Answer with the method, the path, the headers and the body of the request, as JSON."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    request = {"method": scope["method"], "path": scope["path"], "body": body.decode("latin-1"), "headers": headers}
    content = json.dumps(request).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(content))]})
    await send({"type": "http.response.body", "body": content})


class Transport(asyncio.Transport):
    """Keeps what is written; ``buffered`` bytes of it are not taken by the client."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("127.0.0.1", 1), "peername": ("127.0.0.1", 2)})
        self.pieces: list[bytes] = []
        self.closing = self.paused = False
        self.buffered = 0

    def write(self, data) -> None:
        assert not self.closing
        self.pieces.append(bytes(data))

    def close(self) -> None:
        self.closing = True

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return self.buffered


def answers(transport: Transport) -> list[dict | int]:
    """The body that ``echo`` answered to each request, or the status where the server refused it."""
    written, results, start = b"".join(transport.pieces), [], 0
    while start < len(written):
        head = ANSWER.match(written, start)
        assert head, written[start:]
        start = head.end() + int(re.search(rb"content-length: (\d+)", head[2])[1])
        results.append(json.loads(written[head.end() : start]) if head[1] == b"200" else int(head[1]))
    return results


@cache
def configuration() -> uvicorn.Config:
    config = uvicorn.Config(echo, http="httptools", ws="none", log_config=None, access_log=False, server_header=False)
    config.load()
    return config


def connect() -> LimitedProtocol:
    """A fresh connection, whose transport keeps what it writes."""
    one = LimitedProtocol(
        config=configuration(),
        server_state=ServerState(),
        app_state={},
        settings=SETTINGS,
        counts=RequestCounters(),
        budget=MemoryBudget(1 << 20, Overloaded, Counter()),
        clock=EventLoopClock(),
    )
    one.max_header_bytes = MAX_HEAD_BYTES
    one.connection_made(Transport())
    return one


async def send(one: LimitedProtocol, *pieces: bytes, turns: int = 12) -> None:
    """Receive ``pieces``, each a packet; some turns of the loop between them."""
    for piece in pieces:
        if not one.transport.closing:
            one.data_received(piece)
        for _ in range(turns):
            await asyncio.sleep(0)


async def exchange(*pieces: bytes, turns: int = 12) -> tuple[list, Transport]:
    """What a fresh connection answers to ``pieces``."""
    one = connect()
    await send(one, *pieces, turns=turns)
    one.connection_lost(ConnectionError())
    return answers(one.transport), one.transport


def chunked(body: bytes, trailer: bytes = b"") -> bytes:
    middle = len(body) // 2
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:middle], body[middle:]))
    return chunks + b"0\r\n" + trailer + b"\r\n"
