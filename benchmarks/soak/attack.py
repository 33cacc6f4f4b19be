"""Requests made to stop the service: health probes, memory and statuses must stay within limits.

A case sends its requests at the same time, each on its own connection, and counts the statuses of the responses.
"""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import onnx
import uvloop
from onnx import TensorProto, helper

from benchmarks.sampling import sampled
from benchmarks.server import Served, served
from benchmarks.soak.cases import CASES, MIB, QUICK, Case, ordinary
from benchmarks.soak.check import Check
from benchmarks.soak.probe import probed
from benchmarks.soak.wire import read_response

BUDGET_BYTES = 1 << 30  # of the setting memory_budget_bytes
OVERHEAD_BYTES = 100 * MIB  # of growth beyond the budget
RECOVERY_S = 15.0  # time limit until memory is returned
MAX_RATIO = 1.2  # of the memory after recovery to the memory after the first ordinary requests
CASE_S = 60.0  # time limit of a case
SAMPLE_S = 0.02  # interval between samples of the memory


def attack(repository: Path, portion: float, case: str = "") -> list[Check]:
    """Run the cases whose name contains ``case``; without ``case``, only the quick ones if ``portion`` is below 1."""
    names = [name for name in (CASES if case or portion >= 1 else QUICK) if case in name]
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder)
        _save_foreign(models / "outer" / "1")
        (models / "scaled_dot_product").symlink_to((repository / "scaled_dot_product").resolve())
        flags = ("--memory-budget-bytes", str(BUDGET_BYTES), "--transfer-timeout-seconds", "5")
        with served(models, *flags) as server:
            first = uvloop.run(_send(server.port, ordinary()))
            assert set(first) == {200}, first
            start_bytes = server.resident_bytes()
            checks = [check for name in names for check in _checked(server, name, CASES[name](), start_bytes)]
            return [*checks, server.check()]


def _checked(server: Served, name: str, case: Case, start_bytes: int) -> Iterator[Check]:
    """Run a case and check its limits; ``start_bytes`` is the memory before the first case."""
    start_s = time.monotonic()
    with sampled(server.resident_bytes, SAMPLE_S) as resident_bytes, probed(server.port) as probes:
        statuses = uvloop.run(_send(server.port, case))
        if not case.reads:
            time.sleep(8)
        seconds = time.monotonic() - start_s
        end_s = time.monotonic() + RECOVERY_S
        while server.resident_bytes() > MAX_RATIO * start_bytes and time.monotonic() < end_s:
            time.sleep(0.2)
    after_bytes, peak_mib = server.resident_bytes(), max(resident_bytes) >> 20
    slowest_ms = max(probes.times_ms, default=0.0)
    print(f"  {name}: {dict(statuses)}, {seconds:.1f} s, {peak_mib} MiB, probes {slowest_ms:.0f} ms", flush=True)
    if case.reads:
        expected = ", ".join(sorted(map(str, case.statuses)))
        yield Check(f"{name}: status {expected}", f"{dict(statuses)}", set(statuses) <= case.statuses)
    growth_bytes = BUDGET_BYTES + OVERHEAD_BYTES if case.growth_bytes is None else case.growth_bytes
    limit_mib = start_bytes + growth_bytes >> 20
    yield Check(f"{name}: at most {limit_mib} MiB", f"{peak_mib} MiB", peak_mib <= limit_mib)
    yield Check(
        f"{name}: memory returns to within 20 % of the start in {RECOVERY_S:.0f} s",
        f"{start_bytes >> 20} MiB at the start, {after_bytes >> 20} after",
        after_bytes <= MAX_RATIO * start_bytes,
    )
    yield Check(
        f"{name}: probes < {case.probe_ms} ms",
        f"{slowest_ms:.0f} ms (scheduling delay {probes.delay_ms:.0f} ms)",
        slowest_ms - probes.delay_ms < case.probe_ms,
        needs_idle_machine=True,
    )


async def _send(port: int, case: Case) -> Counter[int | str]:
    statuses: Counter[int | str] = Counter()
    at_once = asyncio.Semaphore(case.at_once)

    async def send(wire: bytes) -> None:
        async with at_once:
            await exchange(wire)

    async def exchange(wire: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(wire)
            if case.reads:
                async with asyncio.timeout(CASE_S):
                    response = await read_response(reader)
                statuses[response.status if response else "closed"] += 1
            else:
                with suppress(ConnectionError):
                    await writer.drain()
                await asyncio.sleep(8)
        except (ConnectionError, asyncio.IncompleteReadError):
            statuses["closed"] += 1
        except TimeoutError:
            statuses[f"none in {CASE_S:.0f} s"] += 1
        finally:
            writer.transport.abort()  # close() would wait until the service has read the rest of a refused request
            with suppress(OSError):
                await writer.wait_closed()

    await asyncio.gather(*(send(wire) for wire in case.requests))
    return statuses


def _save_foreign(folder: Path) -> None:
    """y = ab with unknown dimensions, so that the size of y cannot be estimated."""
    folder.mkdir(parents=True)
    vectors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in ("a", "b")]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None])
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "outer", vectors, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, folder / "model.onnx")
