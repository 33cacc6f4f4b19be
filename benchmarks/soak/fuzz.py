"""Mutated requests to both APIs: no failure, no hang, and each client gets the response to its own request."""

import asyncio
import json
import re
import time
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import uvloop

from benchmarks.server import Served, served
from benchmarks.soak.check import Check
from benchmarks.soak.mutants import Row, chunked, mutant, name_of, row_of, valid
from benchmarks.soak.wire import Request, Response, read_response

COUNT = 100_000
CONNECTIONS = 256
READ_TIMEOUT_S = 5.0  # the server closes incomplete requests, and connections without any, after this time
HANG_S = 30.0  # longer than every time limit of the server
FLAGS = ["--transfer-timeout-seconds", f"{READ_TIMEOUT_S:g}", "--max-body-bytes", str(1 << 20)]
NAME = re.compile(rb"n\d{12}")
UNAVAILABLE = (503, 504)


class Fuzzer:
    """Opens connections with a few requests each, one of them mutated; ``wrong`` describes wrong responses."""

    def __init__(self, port: int) -> None:
        self.statuses: Counter[int] = Counter()
        self.mutated = 0
        self.wrong: list[str] = []
        self._port = port
        self._number = 0
        self._owners: dict[Row, set[int]] = {}  # the request numbers of open connections, by the rows they send

    async def connection(self, rng: Random) -> None:
        """Send valid requests, a mutant, and possibly another request after it; some connections are cut off."""
        wire, numbers, valid_count = b"", [], rng.choice([0, 0, 1, 2])
        for i in range(valid_count + 1 + rng.choice([0, 1])):
            self._number += 1
            numbers.append(self._number)
            request = valid(rng, self._number)
            self._owners[row_of(self._number)] = {self._number}
            if i == valid_count:
                wire += mutant(rng, request)
            elif rng.random() < 0.2 and "Content-Encoding: gzip" not in request.headers:
                wire += chunked(rng, request, honest=True)
            else:
                wire += request.wire()
        self.mutated += 1
        cut = rng.random() < 0.1
        if cut:
            wire = wire[: rng.randrange(len(wire) + 1)]
        last = valid(rng, self._number)  # makes the server close the connection, unless the mutant swallows it
        wire += b"" if cut else Request(last.path, (*last.headers, "Connection: close"), last.body).wire()
        try:
            async with asyncio.timeout(HANG_S):
                await self._exchange(rng, wire, numbers, 0 if cut else valid_count, cut)
        except TimeoutError:
            self.wrong.append(f"hangs: {wire!r}")
        finally:
            for number in numbers:
                del self._owners[row_of(number)]

    async def _exchange(self, rng: Random, wire: bytes, numbers: list[int], valid_count: int, cut: bool) -> None:
        """Send ``wire`` in pieces, then read until the server closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        count = 0
        try:
            for piece in pieces(rng, wire):
                if not writer.is_closing():
                    writer.write(piece)
                await asyncio.sleep(0)
            if cut and rng.random() < 0.5:
                return
            while (response := await read_response(reader)) is not None:
                expected = numbers[count] if count < valid_count else None
                if problem := self._problem(response, wire, set(numbers), expected):
                    self.wrong.append(f"{problem}: {response} to {wire!r}")
                self.statuses[response.status] += 1
                count += 1
                if cut and count == len(numbers):
                    return
            if count < valid_count:
                self.wrong.append(f"closed after {count} of {valid_count} valid requests: {wire!r}")
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # a reset discards responses: the client sent more after the server had closed
        except (ValueError, KeyError, asyncio.LimitOverrunError) as error:
            self.wrong.append(f"no HTTP ({error!r}) to {wire!r}")
        finally:
            writer.transport.abort()

    def _problem(self, response: Response, wire: bytes, numbers: set[int], expected: int | None) -> str | None:
        """What is wrong with a response; ``expected`` is the number of the valid request that it must answer."""
        row = output_row(response)
        unknown_coding = response.status == 501 and (
            b"Content-Encoding" in response.body or b"Transfer-Encoding" in response.body
        )
        unknown_version = response.status == 505 and b"HTTP/" in response.body
        if response.status >= 500 and response.status not in UNAVAILABLE and not (unknown_coding or unknown_version):
            return "a failure"
        own_names = {name_of(number).encode() for number in numbers}
        if any(name not in wire for name in {*NAME.findall(b"%r" % (response,))} - own_names):
            return "the name of another request"
        if row in self._owners and not self._owners[row] & numbers:
            return "the numbers of another request"
        if expected is not None and (response.status, row) != (200, row_of(expected)):
            return f"not {row_of(expected)}"
        if expected is not None and response.headers.get(b"x-request-id") != name_of(expected).encode():
            return "not its name"
        return None


def output_row(response: Response) -> Row | None:
    """The three numbers of the output in a response, None if it has no such output."""
    if response.status != 200:
        return None
    length = int(response.headers.get(b"inference-header-content-length", len(response.body)))
    try:
        document, attached = json.loads(response.body[:length]), response.body[length:]
        if len(attached) == 12:
            flat = np.frombuffer(attached, np.float32)
        else:
            flat = np.ravel(document["output"] if "output" in document else document["outputs"][0]["data"])
        first, second, third = map(float, flat)
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return first, second, third


def pieces(rng: Random, wire: bytes) -> list[bytes]:
    cuts = sorted(rng.randrange(len(wire) + 1) for _ in range(rng.choice([0, 0, 1, 2, 5])))
    return [wire[start:end] for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True)]


async def fuzz_connections(fuzzer: Fuzzer, seed: int, count: int) -> None:
    """Send ``count`` mutants, which ``seed`` determines."""
    numbers = iter(range(count))

    async def send() -> None:
        for number in numbers:
            await fuzzer.connection(Random(f"{seed} {number}"))

    async def print_progress() -> None:
        start_s = time.monotonic()
        while True:
            await asyncio.sleep(10)
            past_s = time.monotonic() - start_s
            print(f"  {past_s:4.0f} s  {fuzzer.mutated:7,} mutants  {len(fuzzer.wrong)} wrong", flush=True)

    progress = asyncio.create_task(print_progress())
    await asyncio.gather(*(send() for _ in range(CONNECTIONS)))
    progress.cancel()


def fuzz(repository: Path, portion: float, seed: int) -> list[Check]:
    count = int(COUNT * portion)
    print(f"  seed {seed}")
    with served(repository, *FLAGS) as server:
        return checks(server, seed, count)


def checks(server: Served, seed: int, count: int) -> list[Check]:
    fuzzer = Fuzzer(server.port)
    uvloop.run(fuzz_connections(fuzzer, seed, count))
    for wrong in fuzzer.wrong[:20]:
        print("  " + wrong[:1200])
    return [
        Check(
            f"each of {count:,} mutants of seed {seed} gets its own answer",
            f"{dict(sorted(fuzzer.statuses.items()))}, {len(fuzzer.wrong)} wrong",
            not fuzzer.wrong and fuzzer.mutated == count,
        ),
        server.check(),
    ]
