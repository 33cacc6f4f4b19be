"""Requests made to stop the service: health probes, memory and statuses must stay within limits.

A case sends its requests at the same time, each on its own connection, and counts the statuses of the responses.
"""

import asyncio
import gzip
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import uvloop
from onnx import TensorProto, helper

from benchmarks.peak import sampled_peak
from benchmarks.server import Served, served
from benchmarks.soak.check import Check
from benchmarks.soak.probe import probed
from benchmarks.soak.wire import ATTEND, INFER, NAMES, Request, binary, native, read_response

MIB = 1 << 20
BUDGET_BYTES = 1 << 30  # of the setting memory_budget_bytes
OVERHEAD_BYTES = 200 * MIB  # allowed beyond the budget
RECOVERY_S = 15.0  # time limit until memory is returned
MAX_RATIO = 1.2  # of the memory after recovery to the memory after the first ordinary requests
PROBE_LIMIT_MS = 100
CASE_S = 60.0  # time limit of a case
SAMPLE_S = 0.02  # between two looks at the memory
REJECTED = {400, 413, 422, 503}
ANSWERED = {200} | REJECTED


@dataclass(frozen=True)
class Case:
    """Requests to send at the same time; ``reads`` says whether the clients read the responses."""

    requests: Sequence[bytes]
    statuses: set[int] = field(default_factory=lambda: REJECTED)
    reads: bool = True


def ordinary() -> Case:
    """A small request of each kind. What a process uses for the first time, such as threads, takes memory for good."""
    array = np.ones((1, 2, 64, 16), np.float32)
    tensors = dict.fromkeys(NAMES, array)
    inputs = [{"name": name, "shape": array.shape, "datatype": "FP32", "data": array.tolist()} for name in NAMES]
    json_body = json.dumps({"inputs": inputs}).encode()
    bodies = [_post(INFER, json_body), _post(INFER, gzip.compress(json_body), "Content-Encoding: gzip")]
    lists = native(dict.fromkeys(NAMES, array.tolist())).wire()
    return Case([binary(tensors).wire(), *bodies, lists], {200})


def high_rank(size: int) -> Case:
    """A shape of ``size`` bytes of JSON, whose product has as many digits."""
    axes = b",".join([b"%d" % (2**63 - 1)] * (size // 20))
    body = b'{"query":{"shape":[%b],"data":[1]},"key":[[1]],"value":[[1]]}' % axes
    return Case([_post(ATTEND, body)] * 4)


def classification() -> Case:
    """A small request for all 9,000,000 weights as strings."""
    tensors = {name: np.ones((1, 1, 3000, 1), np.float32) for name in NAMES}
    outputs = [{"name": "weights", "parameters": {"classification": 9_000_000}}]
    return Case([binary(tensors, outputs=outputs).wire()] * 2, ANSWERED)


def string_in_list() -> Case:
    return Case([_post(ATTEND, b'{"query":[%b"x"]}' % (b"0," * (8 * MIB)))])


def compressed(count: int = 32) -> Case:
    """Compressed zeros that inflate a thousandfold."""
    body = gzip.compress(bytes(127 * MIB))
    return Case([_post(INFER, body, "Content-Encoding: gzip")] * count)


def large_answers(count: int = 24, reads: bool = True) -> Case:
    """Weights of 4,096 queries and keys as JSON, some 200 MB each."""
    tensors = {name: [[0.01 * row] for row in range(4096)] for name in NAMES}
    return Case([native(tensors, outputs=["weights"]).wire()] * count, ANSWERED, reads)


def clients_that_never_read() -> Case:
    return large_answers(40, reads=False)


def control_bodies() -> Case:
    return Case([_post("/v2/repository/index", b'{"ready":"%b"}' % (b"x" * (100 * MIB)))] * 40)


def foreign_outer_product() -> Case:
    """A model that computes 400,000 x 400,000 numbers from two vectors."""
    vectors = {"a": np.ones((400_000, 1), np.float32), "b": np.ones((1, 400_000), np.float32)}
    request = binary(vectors, outputs=["y"])
    return Case([request._replace(path="/v2/models/outer/infer").wire()] * 2)


def tiny_lists(size: int) -> Case:
    body = b'{"query":[%b[0]],"key":[[1]],"value":[[1]]}' % (b"[0]," * (size // 4))
    return Case([_post(ATTEND, body)], ANSWERED)


def tiny_objects() -> Case:
    return Case([_post(INFER, b'{"inputs":[%b{}]}' % (b"{}," * (16 * MIB // 3)))])


def trace_settings() -> Case:
    return Case([_post("/v2/trace/setting", b'{"x":[%b0]}' % (b"0," * (32 * MIB)))])


def runs_of_minutes() -> Case:
    """24 kB with two million queries and keys."""
    rows = 2_000_000
    sizes = dict.fromkeys(NAMES, rows * 4)
    inputs = [
        {"name": name, "shape": [1, 1, rows, 1], "datatype": "FP32", "parameters": {"binary_data_size": size}}
        for name, size in sizes.items()
    ]
    head = json.dumps({"inputs": inputs, "outputs": [{"name": "output", "parameters": {"binary_data": True}}]})
    body = gzip.compress(head.encode() + bytes(sum(sizes.values())))
    lines = ("Content-Encoding: gzip", f"Inference-Header-Content-Length: {len(head)}")
    return Case([_post(INFER, body, *lines)] * 2)


CASES: dict[str, Callable[[], Case]] = {
    "a shape of 1 MB": lambda: high_rank(MIB),
    "a shape of 4 MB": lambda: high_rank(4 * MIB),
    "classification of 9,000,000 weights": classification,
    "a list of 16 MB that ends in a string": string_in_list,
    "32 bodies that inflate to 127 MB": compressed,
    "24 answers of 200 MB": large_answers,
    "40 clients that never read": clients_that_never_read,
    "40 control bodies of 100 MB": control_bodies,
    "a foreign model with an output of 640 GB": foreign_outer_product,
    "16 MB of lists of one number": lambda: tiny_lists(16 * MIB),
    "120 MB of lists of one number": lambda: tiny_lists(120 * MIB),
    "16 MB of empty objects": tiny_objects,
    "64 MB to the trace settings": trace_settings,
    "runs of minutes, compressed to 24 kB": runs_of_minutes,
}
QUICK = (
    "a shape of 1 MB",
    "a list of 16 MB that ends in a string",
    "16 MB of lists of one number",
    "16 MB of empty objects",
)


def attack(repository: Path, portion: float, case: str = "") -> list[Check]:
    """Run the cases whose name contains ``case``; of all of them only the quick ones if ``portion`` is below 1."""
    names = [name for name in (CASES if case or portion >= 1 else QUICK) if case in name]
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder)
        _save_foreign(models / "outer" / "1")
        (models / "scaled_dot_product").symlink_to((repository / "scaled_dot_product").resolve())
        flags = ("--memory-budget-bytes", str(BUDGET_BYTES), "--write-timeout-seconds", "5")
        with served(models, *flags) as server:
            first = uvloop.run(_send(server.port, ordinary()))
            assert set(first) == {200}, first
            start_bytes = server.resident_bytes()
            checks = [check for name in names for check in _checked(server, name, CASES[name](), start_bytes)]
            return [*checks, server.check()]


def _checked(server: Served, name: str, case: Case, start_bytes: int) -> Iterator[Check]:
    """``start_bytes`` is the memory before the first case."""
    start_s = time.monotonic()
    with sampled_peak(server.resident_bytes, SAMPLE_S) as peak, probed(server.port) as probes:
        statuses = uvloop.run(_send(server.port, case))
        if not case.reads:
            time.sleep(8)
        seconds = time.monotonic() - start_s
        end_s = time.monotonic() + RECOVERY_S
        while server.resident_bytes() > MAX_RATIO * start_bytes and time.monotonic() < end_s:
            time.sleep(0.2)
    after_bytes = server.resident_bytes()
    slowest_ms = max(probes.times_ms, default=0.0)
    print(f"  {name}: {dict(statuses)}, {seconds:.1f} s, {peak[0] >> 20} MiB, probes {slowest_ms:.0f} ms", flush=True)
    if case.reads:
        expected = ", ".join(map(str, sorted(case.statuses)))
        yield Check(f"{name}: status {expected}", f"{dict(statuses)}", set(statuses) <= case.statuses)
    limit_mib = (BUDGET_BYTES + OVERHEAD_BYTES) >> 20
    yield Check(f"{name}: at most {limit_mib} MiB", f"{peak[0] >> 20} MiB", peak[0] >> 20 <= limit_mib)
    yield Check(
        f"{name}: memory returns to within 20 % of the start in {RECOVERY_S:.0f} s",
        f"{start_bytes >> 20} MiB at the start, {after_bytes >> 20} after",
        after_bytes <= MAX_RATIO * start_bytes,
    )
    yield Check(
        f"{name}: probes < {PROBE_LIMIT_MS} ms",
        f"{slowest_ms:.0f} ms (scheduling delay {probes.delay_ms:.0f} ms)",
        slowest_ms - probes.delay_ms < PROBE_LIMIT_MS,
        needs_idle_machine=True,
    )


async def _send(port: int, case: Case) -> Counter[int | str]:
    statuses: Counter[int | str] = Counter()

    async def send(wire: bytes) -> None:
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
            writer.close()

    await asyncio.gather(*(send(wire) for wire in case.requests))
    return statuses


def _post(path: str, body: bytes, *headers: str) -> bytes:
    return Request(path, headers, body).wire()


def _save_foreign(folder: Path) -> None:
    """y = ab with unknown dimensions, so that the size of y cannot be estimated."""
    folder.mkdir(parents=True)
    vectors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in ("a", "b")]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None])
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "outer", vectors, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, folder / "model.onnx")
