"""Mutated requests over both faces: no failure, no hang, and nobody gets what another asked for."""

import asyncio
import json
import re
import time
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import uvloop

from benchmarks.soak.check import Check
from benchmarks.soak.mutants import Row, chunked, mutant, name_of, row_of, valid
from benchmarks.soak.served import Served, served
from benchmarks.soak.wire import Answer, Request, answer

COUNT = 100_000
AT_ONCE = 256  # connections
RECEIVE = 1.0  # seconds: a request that stays incomplete is given up then
HANG = 20.0  # seconds, past every limit of the server
FLAGS = ["--receive-seconds", f"{RECEIVE:g}", "--max-body-bytes", str(1 << 20)]
NAME = re.compile(rb"n\d{12}")
REFUSALS = (503, 504)


class Fuzzer:
    """Connections of some requests each, one of which is mutated; what is wrong with their answers is in ``wrong``."""

    def __init__(self, port: int) -> None:
        self.statuses: Counter[int] = Counter()
        self.mutated = 0
        self.wrong: list[str] = []
        self._port = port
        self._number = 0
        self._owners: dict[Row, set[int]] = {}  # of the rows of live connections, by their numbers

    async def connection(self, draw: Random) -> None:
        """One of them: valid requests, a mutant, and others behind it; or it is cut off somewhere."""
        said, numbers, first = b"", [], draw.choice([0, 0, 1, 2])
        for place in range(first + 1 + draw.choice([0, 1])):
            self._number += 1
            numbers.append(self._number)
            request = valid(draw, self._number)
            self._owners[row_of(self._number)] = {self._number}
            if place == first:
                said += mutant(draw, request)
            elif draw.random() < 0.2 and "Content-Encoding: gzip" not in request.headers:
                said += chunked(draw, request, honest=True)
            else:
                said += request.wire()
        self.mutated += 1
        cut = draw.random() < 0.1
        if cut:
            said = said[: draw.randrange(len(said) + 1)]
        last = valid(draw, self._number)  # closes the connection, if the server is still at the beginning of a request
        said += b"" if cut else Request(last.path, (*last.headers, "Connection: close"), last.body).wire()
        try:
            async with asyncio.timeout(HANG):
                await self._talk(draw, said, numbers, 0 if cut else first, cut)
        except TimeoutError:
            self.wrong.append(f"hangs: {said!r}")
        finally:
            for number in numbers:
                del self._owners[row_of(number)]

    async def _talk(self, draw: Random, said: bytes, numbers: list[int], first: int, cut: bool) -> None:
        """Send it in some pieces, and read on until the server closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        answers = 0
        try:
            for piece in pieces(draw, said):
                if not writer.is_closing():
                    writer.write(piece)
                await asyncio.sleep(0)
            if cut and draw.random() < 0.5:
                return
            while (found := await answer(reader)) is not None:
                own = numbers[answers] if answers < first else None
                if problem := self._problem(found, said, set(numbers), own):
                    self.wrong.append(f"{problem}: {found} to {said!r}")
                self.statuses[found.status] += 1
                answers += 1
                if cut and answers == len(numbers):
                    return
            if answers < first:
                self.wrong.append(f"closed after {answers} of {first} valid requests: {said!r}")
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # what it had still to say was lost: it was sent more after it had closed
        except (ValueError, KeyError, asyncio.LimitOverrunError) as error:
            self.wrong.append(f"no HTTP ({error!r}) to {said!r}")
        finally:
            writer.transport.abort()

    def _problem(self, found: Answer, said: bytes, numbers: set[int], own: int | None) -> str | None:
        """What is wrong with an answer; that of the valid request ``own`` has to be right."""
        row = row_in(found)
        unknown_coding = found.status == 501 and b"Content-Encoding" in found.body
        if found.status >= 500 and found.status not in REFUSALS and not unknown_coding:
            return "a failure"
        own_names = {name_of(number).encode() for number in numbers}
        if any(name not in said for name in {*NAME.findall(b"%r" % (found,))} - own_names):
            return "the name of another"
        if row in self._owners and not self._owners[row] & numbers:
            return "the numbers of another"
        if own is not None and (found.status, row) != (200, row_of(own)):
            return f"not {row_of(own)}"
        if own is not None and found.headers.get(b"x-request-id") != name_of(own).encode():
            return "not its name"
        return None


def row_in(found: Answer) -> Row | None:
    """The three numbers that are the output in an answer, if they are."""
    if found.status != 200:
        return None
    length = int(found.headers.get(b"inference-header-content-length", len(found.body)))
    try:
        said, attached = json.loads(found.body[:length]), found.body[length:]
        if len(attached) == 12:
            flat = np.frombuffer(attached, np.float32)
        else:
            flat = np.ravel(said["output"] if "output" in said else said["outputs"][0]["data"])
        first, second, third = map(float, flat)
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return first, second, third


def pieces(draw: Random, said: bytes) -> list[bytes]:
    cuts = sorted(draw.randrange(len(said) + 1) for _ in range(draw.choice([0, 0, 1, 2, 5])))
    return [said[start:end] for start, end in zip([0, *cuts], [*cuts, len(said)], strict=True)]


async def fuzz_connections(fuzzer: Fuzzer, seed: int, count: int) -> None:
    """``count`` mutants, by what ``seed`` draws."""
    numbers = iter(range(count))

    async def keep_on() -> None:
        for number in numbers:
            await fuzzer.connection(Random(f"{seed} {number}"))

    async def tell() -> None:
        start = time.monotonic()
        while True:
            await asyncio.sleep(10)
            past = time.monotonic() - start
            print(f"  {past:4.0f} s  {fuzzer.mutated:7,} mutants  {len(fuzzer.wrong)} wrong", flush=True)

    telling = asyncio.create_task(tell())
    await asyncio.gather(*(keep_on() for _ in range(AT_ONCE)))
    telling.cancel()


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
            f"{count:,} mutants of seed {seed} are answered, each with its own",
            f"{dict(sorted(fuzzer.statuses.items()))}, {len(fuzzer.wrong)} wrong",
            not fuzzer.wrong and fuzzer.mutated == count,
        ),
        server.is_sound(),
    ]
