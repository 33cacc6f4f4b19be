"""The cases of ``attack``: requests made to stop the service or to fill its memory."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.soak.wire import ATTEND, INFER, NAMES, Request, binary, compressed, native, v2_json

MIB = 1 << 20
REJECTED: set[int | str] = {400, 413, 422, 431, 503}
CUT_OFF = REJECTED | {"closed"}  # an answer to a client that still sends may be lost
ANSWERED = {200} | REJECTED
MEMORIES = "/v1/memories"
LONG_NUMBER = b"0.123456789012345678901234567890e-12"


@dataclass(frozen=True)
class Case:
    """Requests to send.

    ``reads`` says whether the clients read the responses, ``at_once`` how many requests are sent at the same time;
    ``growth_bytes`` limits the growth of the process, ``probe_ms`` the time of a probe.
    """

    requests: Sequence[bytes]
    statuses: set[int | str] = field(default_factory=lambda: {*REJECTED})
    reads: bool = True
    at_once: int = 1000
    growth_bytes: int | None = None  # None: up to the budget
    probe_ms: int = 100


def ordinary() -> Case:
    """A small request of each kind: threads and other resources take memory permanently when they are first used."""
    array = np.ones((1, 2, 64, 16), np.float32)
    tensors = dict.fromkeys(NAMES, array)
    lists = native(dict.fromkeys(NAMES, array.tolist()))
    requests = binary(tensors), v2_json(tensors), compressed(v2_json(tensors)), lists
    return Case([request.wire() for request in requests], {200})


def high_rank(size: int) -> Case:
    """A shape of ``size`` bytes of JSON, whose product has as many digits."""
    axes = b",".join([b"%d" % (2**63 - 1)] * (size // 20))
    body = b'{"query":{"shape":[%b],"data":[1]},"key":[[1]],"value":[[1]]}' % axes
    return Case([_post(ATTEND, body)] * 4)


def classification(count: int) -> Case:
    """A small request for ``count`` weights as strings, of 9,000,000 that the block computes."""
    tensors = {name: np.ones((1, 1, 3000, 1), np.float32) for name in NAMES}
    outputs = [{"name": "weights", "parameters": {"classification": count}}]
    return Case([binary(tensors, outputs=outputs).wire()] * 2, ANSWERED)


def string_in_list() -> Case:
    return Case([_post(ATTEND, b'{"query":[%b"x"]}' % (b"0," * (8 * MIB)))])


def bombs() -> Case:
    """Compressed zeros that inflate a thousandfold."""
    return Case([compressed(Request(INFER, (), bytes(127 * MIB))).wire()] * 32)


def large_answers(count: int, reads: bool) -> Case:
    """Weights of 4,096 queries and keys as JSON, some 200 MB each."""
    tensors = {name: [[0.01 * row] for row in range(4096)] for name in NAMES}
    return Case([native(tensors, outputs=["weights"]).wire()] * count, ANSWERED, reads)


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
    lines = (f"Inference-Header-Content-Length: {len(head)}",)
    request = Request(INFER, lines, head.encode() + bytes(sum(sizes.values())))
    return Case([compressed(request).wire()] * 2)


def unknown_fields(count: int) -> Case:
    """Small uploads with unknown fields, then a large one: a cost learned from small failures must not mislead."""
    small, large = ({f"f{number}": 0 for number in range(size)} for size in (10, count))
    return Case([_post(MEMORIES, json.dumps(fields).encode()) for fields in (*[small] * 40, large)])


def chunked(chunks: bytes) -> Case:
    """A body in chunks that the server cuts off."""
    head = b"POST %b HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n" % ATTEND.encode()
    return Case([head + chunks], CUT_OFF, growth_bytes=100 * MIB)


def unfinished_heads() -> Case:
    line = b"ab:\r\n"
    head = b"POST / HTTP/1.1\r\nHost: here\r\n" + line * (60_000 // len(line))
    long = b"POST / HTTP/1.1\r\nHost: here\r\nX: " + b"x" * 60_000
    return Case([*[head] * 500, *[long] * 500], reads=False, growth_bytes=200 * MIB, probe_ms=300)


def small_memories() -> Case:
    """Small memories that all differ, so that none is found by its content."""
    uploads = ({"key": [[number]], "value": [[number]]} for number in range(500))
    return Case([_post(MEMORIES, json.dumps(upload).encode()) for upload in uploads], {201}, at_once=8)


def tags() -> Case:
    """900 contents that no memory has, beside the memories of the case before."""
    names = ", ".join(f'"{number:064x}"' for number in range(900))
    return Case([_post(MEMORIES, b'{"key":[[1]],"value":[[1]]}', f"If-None-Match: {names}")] * 4, {200, 201})


def rows_of_a_memory(count: int) -> Case:
    """A memory of ``count`` rows of one key, in binary."""
    tensor = {"shape": [count, 1, 1, 1], "dtype": "float32", "binary_data_size": 4 * count}
    head = json.dumps({"key": tensor, "value": tensor}).encode()
    lines = (f"Inference-Header-Content-Length: {len(head)}", "Content-Type: application/octet-stream")
    return Case([_post(MEMORIES, head + bytes(8 * count), *lines)])


def long_queries() -> Case:
    query = b"a=b&" * 15_000
    return Case([b"GET /v2/health/ready?%b HTTP/1.1\r\nHost: here\r\n\r\n" % query] * 1000, {414}, probe_ms=300)


def unfinished_control_bodies() -> Case:
    head = b"POST /v2/repository/index HTTP/1.1\r\nHost: here\r\nContent-Length: 2000000\r\n\r\n"
    return Case([head + b" " * MIB] * 500, reads=False, growth_bytes=100 * MIB, probe_ms=300)


def one_list(content: bytes) -> Case:
    return Case([_post(ATTEND, b'{"query":[[%b]],"key":[[1]],"value":[[1]]}' % content)], ANSWERED)


def short_texts() -> Case:
    texts = b",".join([b'""'] * (4 * MIB // 3))
    return Case([_post(INFER, b'{"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","data":[%b]}]}' % texts)])


def objects_in_parameters() -> Case:
    objects = b",".join([b"{}"] * (4 * MIB // 3))
    return Case([_post(INFER, b'{"parameters":{"x":[%b]},"inputs":[]}' % objects)] * 20)


def many_parameters() -> Case:
    parameters = json.dumps({f"p{number}": 0 for number in range(380_000)}).encode()
    return Case([_post(INFER, b'{"parameters":%b,"inputs":[]}' % parameters)])


def _post(path: str, body: bytes, *headers: str) -> bytes:
    return Request(path, headers, body).wire()


CASES: dict[str, Callable[[], Case]] = {
    "a shape of 1 MB": lambda: high_rank(MIB),
    "a shape of 4 MB": lambda: high_rank(4 * MIB),
    "classification of 9,000,000 weights": lambda: classification(9_000_000),
    "classification of 2,147,483,648 weights": lambda: classification(2**31),
    "a list of 16 MB that ends in a string": string_in_list,
    "32 bodies that inflate to 127 MB": bombs,
    "24 answers of 200 MB": lambda: large_answers(24, reads=True),
    "40 clients that never read": lambda: large_answers(40, reads=False),
    "40 control bodies of 100 MB": control_bodies,
    "a foreign model with an output of 640 GB": foreign_outer_product,
    "16 MB of lists of one number": lambda: tiny_lists(16 * MIB),
    "120 MB of lists of one number": lambda: tiny_lists(120 * MIB),
    "16 MB of empty objects": tiny_objects,
    "64 MB to the trace settings": trace_settings,
    "runs of minutes, compressed to 24 kB": runs_of_minutes,
    "a memory of 45,000 unknown fields": lambda: unknown_fields(45_000),
    "a memory of 380,000 unknown fields": lambda: unknown_fields(380_000),
    "26 MB of trailers": lambda: chunked(b"2\r\n{}\r\n0\r\n" + b"ab:\r\n" * (26 * MIB // 5)),
    "2 MB of chunks of one byte": lambda: chunked(b"1\r\n0\r\n" * (2 * MIB // 6)),
    "2 MB of chunks of one byte after a long one": lambda: chunked(
        b"%x\r\n%b\r\n" % (20 * MIB, b" " * 20 * MIB) + b"1\r\n \r\n" * (2 * MIB // 6)
    ),
    "2 MB of empty lines between chunks": lambda: chunked(b"2\r\n{}\r\n" + b"\r\n" * MIB),
    "1,000 heads without an end": unfinished_heads,
    "500 small memories": small_memories,
    "900 tags beside small memories": tags,
    "a memory of 1,000,000 rows": lambda: rows_of_a_memory(1_000_000),
    "1,000 paths of 60 kB": lambda: Case([_post("/v2/models/" + "a" * 60_000, b"")] * 1000, {414}, probe_ms=300),
    "1,000 query strings of 60 kB": long_queries,
    "500 control bodies of 2 MB, unfinished": unfinished_control_bodies,
    "4 MB of objects in parameters, 20 times": objects_in_parameters,
    "40 MB of blanks in a list": lambda: one_list(b" " * (40 * MIB) + b"1"),
    "a number of 30 MB": lambda: one_list(b"1" * (30 * MIB)),
    "4 MB of numbers with 30 digits and exponents": lambda: one_list(b",".join([LONG_NUMBER] * (4 * MIB // 36))),
    "4 MB of short texts": short_texts,
    "380,000 parameters": many_parameters,
}
QUICK = (
    "a memory of 45,000 unknown fields",
    "26 MB of trailers",
    "2 MB of chunks of one byte",
    "a number of 30 MB",
    "a memory of 1,000,000 rows",
    "380,000 parameters",
    "a shape of 1 MB",
    "a list of 16 MB that ends in a string",
    "16 MB of lists of one number",
    "16 MB of empty objects",
)
