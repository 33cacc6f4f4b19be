"""Answers of every form; and what is none."""

import asyncio
from contextlib import suppress
from functools import partial

import pytest

from loadtest.connection import Connection, Request

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ([OK], [200, 200]),
        ([OK[:20], OK[20:]], [200, 200]),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", b"0\r\n\r\n"], [200, 200]),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" + OK], [200, 200]),
        ([b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"], [503]),
        ([b"what?\r\n\r\n"], ["not HTTP"]),
        ([b""], ["connection lost"]),
        ([OK[:20], b""], ["connection lost"]),
    ],
)
def test_answers(sent, told):
    """Two requests on one connection, each answered so; nothing sent closes it."""

    async def ask() -> list[int | str]:
        results: list[int | str] = []
        lost, ended = asyncio.get_running_loop().create_future(), asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                while await reader.read(4):
                    for part in sent:
                        if not part:
                            raise ConnectionError
                        writer.write(part)
                        await asyncio.sleep(0.01)
            writer.close()
            ended.set()

        def free(connection: Connection) -> None:
            if len(results) < 2:
                connection.post(Request(b"ping", 0), 0, 0)
            else:
                connection.abort("over")

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        make = partial(Connection, lambda _request, _began, result: results.append(result), free, lost.set_result)
        await asyncio.get_running_loop().create_connection(make, *address)
        await asyncio.wait_for(lost, 10)
        await asyncio.wait_for(ended.wait(), 10)
        server.close()
        await server.wait_closed()
        return results

    assert asyncio.run(ask()) == told
