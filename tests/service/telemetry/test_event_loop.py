"""When a request came that the event loop reads late."""

import asyncio
import socket
import sys
import time

import pytest

from service.telemetry.event_loop import EventLoopClock

IDLE_S, LATE_S = 0.5, 0.15
EXTENDED = ((1, 0), (1, 0.05), (2, 0.002), (2, 0.05))
CLOCK_S = 0.02  # steps of the kernel's clock, and how late a sleep ends


class Server(asyncio.Protocol):
    """Answers each byte, and keeps how long it waited, in seconds."""

    def __init__(self):
        self.clock, self.waits = EventLoopClock(), []

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        loop = asyncio.get_running_loop()
        arrival = self.clock.arrival_ns(loop, self.transport)
        self.waits.append((time.perf_counter_ns() - arrival) / 1e9)
        self.transport.write(data)


async def ask_late(server: Server, requests: int, preempted_s: float) -> float:
    """Send requests, each ``IDLE_S`` after the last answer, in a turn that takes ``LATE_S``: the time of the last.

    Between that turn and the next the thread does nothing for ``preempted_s``.
    """
    loop = asyncio.get_running_loop()
    async with await loop.create_server(lambda: server, "127.0.0.1", 0) as listener:
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(requests):
            await asyncio.sleep(IDLE_S)
            begin = time.perf_counter()
            server.clock.arrival_ns(loop, server.transport)  # another request, with which the turn begins
            writer.write(b"x")
            time.sleep(LATE_S)
            loop.call_soon(time.sleep, preempted_s)
            await reader.readexactly(1)
            taken = time.perf_counter() - begin
        writer.close()
        await writer.wait_closed()
    return taken


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel is asked, which has to be Linux")
@pytest.mark.parametrize(
    ("requests", "preempted_s"),
    [(1, 0.002), (2, 0), *(pytest.param(*case, marks=pytest.mark.extended) for case in EXTENDED)],
)
def test_a_request_waits_from_its_arrival_not_from_what_was_before(requests, preempted_s):
    """The connection was made, and its first request answered, long before the last request came."""
    server = Server()
    taken = asyncio.run(ask_late(server, requests, preempted_s))
    assert LATE_S - CLOCK_S < server.waits[-1] < taken + CLOCK_S
