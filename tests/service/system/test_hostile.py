"""Input that means harm: each gets its clear error, and afterwards the server answers and is no larger."""

import base64
import gzip
import json
import re
import shutil
import socket
import time
import zlib
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import unquote

import httpx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.service.workers.test_workers import ADD, Connection, Service, started, until
from tests.support import graphs

MIB = 1 << 20
RECEIVE = 1.5  # seconds
GROWTH = 48 * MIB  # what one test may leave behind: buffers of bodies of 4 MiB, kept by the allocator
FREED = 20  # seconds, at most, until a server that is idle has freed what is more: it looks every 5 s
INFER = "POST /v2/models/adder/infer HTTP/1.1\r\nHost: x\r\n"
SDPA = "/v1/attention/scaled_dot_product"
SECRET = "the-secret"


@pytest.fixture(scope="module")
def models(repository, tmp_path_factory) -> Path:
    """An honest model, a block, and some whose files reach for what is not theirs."""
    folder = tmp_path_factory.mktemp("models")
    graphs.adder(folder / "adder" / "1")
    (folder / "scaled_dot_product").symlink_to(repository / "scaled_dot_product")
    secret = folder / "secret.bin"
    secret.write_bytes(SECRET.encode() * 100)
    outside(folder / "reaches_up" / "1", "../../secret.bin")
    outside(folder / "reaches_out" / "1", str(secret))
    outside(folder / "reaches_nothing" / "1", "weights.bin")
    node = helper.make_node("Exfiltrate", ["x"], ["y"], domain="evil")
    written(folder / "stranger" / "1", [node], domains=["evil"])
    nodes = [helper.make_node("Identity", ["y"], ["z"]), helper.make_node("Identity", ["z"], ["y"])]
    written(folder / "circle" / "1", nodes)
    (folder / "unreadable" / "1").mkdir(parents=True)
    (folder / "unreadable" / "1" / "model.onnx").symlink_to("/proc/self/mem")  # even to root
    return folder


def outside(folder: Path, location: str) -> None:
    """y = x + w, where w lies in another file."""
    weight = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "12")):
        weight.external_data.add(key=key, value=value)
    written(folder, [helper.make_node("Add", ["x", "w"], ["y"])], [weight])


def written(folder: Path, nodes, initializers=(), domains=()) -> None:
    """A model of x [3] and y [3], unchecked."""
    folder.mkdir(parents=True)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "by_hand", ends[:1], ends[1:], list(initializers))
    opsets = [helper.make_opsetid(domain, version) for domain, version in [("", 20), *((name, 1) for name in domains)]]
    (folder / "model.onnx").write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    )


@pytest.fixture(scope="module")
def service(models, tmp_path_factory):
    flags = ["--workers", "1", "--max-concurrent-runs", "1", "--model-control-mode", "explicit"]
    flags += [
        "--max-body-bytes",
        str(4 * MIB),
        "--max-header-bytes",
        "8192",
        "--read-timeout-seconds",
        str(RECEIVE),
        "--max-memory-bytes",
        str(256 * MIB),
        "--ready-when",  # of the models some are refused
        "any",
    ]
    with started(models, tmp_path_factory.mktemp("log") / "log", *flags) as service:
        for _ in range(200):
            alive(service)
        yield service
        assert "Traceback" not in service.log.read_text()


@pytest.fixture(autouse=True)
def unharmed(service):
    before = resident(service)
    yield
    alive(service)
    until(lambda: resident(service) - before < GROWTH, FREED)


@pytest.fixture
def client(service):
    with httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=30) as client:
        yield client


def alive(service: Service) -> None:
    with closing(Connection(service.port)) as connection:
        connection.add()


def resident(service: Service, line: str = "VmRSS") -> int:
    """Bytes."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return 1024 * int(re.search(rf"{line}:\s+(\d+) kB", status)[1])


def said(service: Service, *pieces: bytes | str, pause: float = 0) -> bytes:
    """What the server says to ``pieces``, sent until it hangs up."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as raw:
        with suppress(ConnectionError):
            for piece in pieces:
                raw.sendall(piece if isinstance(piece, bytes) else piece.encode())
                time.sleep(pause)
        found = b""
        with suppress(ConnectionError):
            while chunk := raw.recv(65536):
                found += chunk
                if b"\r\n\r\n" in found and b"connection: close" not in found.lower():
                    break
        return found


SLOW = {
    "a head": ["GET /v2 HTTP/1.1\r\n", *["X"] * 20],
    "headers": ["GET /v2 HTTP/1.1\r\n", *[f"X-{n}: y\r\n" for n in range(20)]],
    "a body": [f"{INFER}Content-Length: 1000\r\n\r\n", *["{"] * 20],
    "no body": [f"{INFER}Content-Length: 1000\r\n\r\n", *[""] * 20],
    "chunks": [f"{INFER}Transfer-Encoding: chunked\r\n\r\n", *["1\r\n{\r\n"] * 20],
    "trailers": [f"{INFER}Transfer-Encoding: chunked\r\n\r\n0\r\n", *[f"X-{n}: y\r\n" for n in range(20)]],
}


@pytest.mark.parametrize("pieces", SLOW.values(), ids=SLOW)
def test_slow_requests_are_cut_off(service, pieces):
    start = time.monotonic()
    found = said(service, *pieces, pause=0.15)
    assert found.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"(read_timeout_seconds)" in found
    assert RECEIVE < time.monotonic() - start < RECEIVE + 3


def test_connections_without_a_word_are_closed(service):
    start = time.monotonic()
    assert said(service) == b""
    assert time.monotonic() - start < RECEIVE + 3


def test_a_long_run_is_not_a_slow_request(service, client):
    """What is limited is the way here, not the work."""
    with closing(Connection(service.port)) as connection:
        for _ in range(3):
            connection.add()
            time.sleep(RECEIVE / 2 + 0.3)  # between requests, too


LONG = {
    "a header": ["GET /v2 HTTP/1.1\r\nX: ", *["x" * 65536] * 400, "\r\n\r\n"],
    "a name": ["GET /v2 HTTP/1.1\r\n", *["x" * 65536] * 400, ": y\r\n\r\n"],
    "a path": ["GET /", *["x" * 65536] * 400, " HTTP/1.1\r\n\r\n"],
    "headers": ["GET /v2 HTTP/1.1\r\n", *["X-Header: y\r\n" * 5000] * 400, "\r\n"],
}


@pytest.mark.parametrize("pieces", LONG.values(), ids=LONG)
def test_long_heads_are_refused(service, pieces):
    found = said(service, *pieces)
    assert found == b"" or re.match(rb"HTTP/1.1 (431|400) ", found)  # nothing: its answer was lost with the connection
    assert resident(service, "VmHWM") < resident(service) + 4 * GROWTH


def test_a_head_a_little_too_long_is_told(service):
    found = said(service, "GET /v2 HTTP/1.1\r\nX: " + "x" * 9000)
    assert found.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert b"(max_header_bytes), 8,192 bytes." in found
    counted = httpx.get(f"http://127.0.0.1:{service.port}/metrics").text
    assert re.search(r'heed_requests_rejected_total{reason="max_header_bytes"} [1-9]', counted)


CHUNKED = f"{INFER}Transfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "a body": [CHUNKED, *["10000\r\n" + "x" * 65536 + "\r\n"] * 1000],
    "tiny chunks": [CHUNKED, *["1\r\n{\r\n" * 10000] * 1000],
    "a chunk's extension": [CHUNKED, "1;", *["x" * 65536] * 1000],
    "a trailer": [CHUNKED, "1\r\n{\r\n0\r\nX: ", *["x" * 65536] * 1000],
    "trailers": [CHUNKED, "1\r\n{\r\n0\r\n", *["X-Trailer: y\r\n" * 5000] * 1000],
}


@pytest.mark.parametrize("pieces", ENDLESS.values(), ids=ENDLESS)
def test_endless_bodies_are_refused(service, pieces):
    found = said(service, *pieces)
    assert found == b"" or re.match(rb"HTTP/1.1 (400|408|413|431) ", found)
    assert resident(service) < 2**31


WRONG = {
    "no number": "Content-Length: many",
    "negative": "Content-Length: -1",
    "past 64 bits": f"Content-Length: {2**64 + 5}",
    "two": "Content-Length: 2\r\nContent-Length: 200",
    "both": "Content-Length: 2\r\nTransfer-Encoding: chunked",
    "a folded header": "X: a\r\n b\r\nY : z",
    "a null": "X: a\0b",
    "no colon": "Content-Length",
}


@pytest.mark.parametrize("header", WRONG.values(), ids=WRONG)
def test_heads_that_are_ambiguous_are_400(service, header):
    assert said(service, f"{INFER}{header}\r\n\r\n" + "{}").startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("length", [4 * MIB + 1, 2**40, 10**18])
def test_a_body_declared_too_long_is_refused_before_it_comes(service, length):
    found = said(service, f"{INFER}Connection: close\r\nContent-Length: {length}\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 400 ")
    assert b"max_body_bytes" in found


def of_shape(shape, data):
    return {"inputs": [{"name": name, "shape": shape, "datatype": "FP32", "data": data} for name in ("x", "z")]}


MANY = [{"name": f"x{number}", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]} for number in range(20_000)]
BODIES = {
    "deep lists": b"[" * MIB,
    "deep data": b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": ' + b"[" * MIB,
    "deep objects": b'{"a":' * 200_000,
    "thousands of tensors": json.dumps({"inputs": MANY}).encode(),
    "one tensor thousands of times": json.dumps({"inputs": [MANY[0] | {"name": "x"}] * 20_000}).encode(),
    "thousands of outputs": json.dumps(
        {"inputs": MANY[:1], "outputs": [{"name": f"{n}"} for n in range(50_000)]}
    ).encode(),
    "thousands of parameters": json.dumps(
        {**json.loads(ADD), "parameters": {f"p{n}": n for n in range(50_000)}}
    ).encode(),
    "a parameter of a million": json.dumps({**json.loads(ADD), "parameters": {"p": [1] * 500_000}}).encode(),
    "a number of a million digits": ADD.replace("[1, 2, 3]", "[1, 2, " + "3" * MIB + "]").encode(),
    "a shape of a million": json.dumps(of_shape([1] * 500_000, [1])).encode(),
    "a product past 64 bits": json.dumps(of_shape([2**32, 2**32], [1, 2, 3])).encode(),
    "a product that is zero past 64 bits": json.dumps(of_shape([2**62, 4], [])).encode(),
    "a dimension past 64 bits": json.dumps(of_shape([2**64, 3], [1, 2, 3])).encode(),
    "a negative dimension": json.dumps(of_shape([-1, 3], [1, 2, 3])).encode(),
    "two negative dimensions": json.dumps(of_shape([-1, -3], [1, 2, 3])).encode(),
    "a dimension of words": json.dumps(of_shape(["1", 3], [1, 2, 3])).encode(),
    "too few numbers": json.dumps(of_shape([2, 3], [1, 2, 3])).encode(),
    "too many numbers": json.dumps(of_shape([1, 3], [1.0] * 100_000)).encode(),
    "surrogates": b'{"id": "\\ud800", "inputs": []}',
    "a null byte": b'{"inputs\0": []}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_400_of_bodies(client, body):
    start = time.monotonic()
    response = client.post("/v2/models/adder/infer", content=body)
    assert (response.status_code, set(response.json())) == (400, {"error"})
    assert len(response.content) < 10_000
    assert time.monotonic() - start < 5


NATIVE = {
    "a product past 64 bits": {"shape": [2**32, 2**32], "data": [1]},
    "a base64 product past 64 bits": {"shape": [2**32, 2**32], "dtype": "float32", "base64": "AACAPw=="},
    "a dimension past 63 bits": {"shape": [2**63, 1], "data": [1]},
    "a negative dimension": {"shape": [-1, 1], "data": [1]},
    "objects": [[{}] * 100_000],
    "rows of nothing": [[]] * 200_000,
}


@pytest.mark.parametrize("query", NATIVE.values(), ids=NATIVE)
def test_422_of_tensors(client, query):
    response = client.post(SDPA, json={"query": query, "key": [[1]], "value": [[1]]})
    assert (response.status_code, response.json()["field"]) == (422, "query")


def test_thousands_of_fields(client):
    response = client.post(SDPA, json={f"field{n}": [[1]] for n in range(100_000)})
    assert response.status_code == 400
    assert len(response.content) < 10_000


@pytest.mark.parametrize("outputs", [["weights"], ["scores", "weights"]])
def test_more_pairs_than_fit_are_refused_before_the_work(service, client, outputs):
    """100,000 queries and keys: 40 GB of weights, of a body of 600 KB."""
    rows = {"shape": [100_000, 1], "data": [1] * 100_000}
    before, start = resident(service, "VmHWM"), time.monotonic()
    response = client.post(SDPA, json={"query": rows, "key": rows, "value": rows, "outputs": outputs})
    assert (response.status_code, "max_memory_bytes" in response.json()["detail"]) == (413, True)
    tensor = {"shape": [1, 1, 100_000, 1], "datatype": "FP32", "data": [1] * 100_000}
    inputs = [{"name": name, **tensor} for name in ("query", "key", "value")]
    response = client.post(
        "/v2/models/scaled_dot_product/infer",
        json={"inputs": inputs, "outputs": [{"name": name} for name in outputs]},
    )
    assert (response.status_code, "max_memory_bytes" in response.json()["error"]) == (400, True)
    assert time.monotonic() - start < 5
    assert resident(service, "VmHWM") - before < 4 * GROWTH


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_decompression_bomb_does_not_go_off(service, client, encoding):
    """A gigabyte in a megabyte."""
    packer = zlib.compressobj(9, zlib.DEFLATED, {"gzip": 31, "deflate": 15}[encoding])
    bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(1024)) + packer.flush()
    assert len(bomb) < 2 * MIB
    before = resident(service, "VmHWM")
    response = client.post("/v2/models/adder/infer", content=bomb, headers={"Content-Encoding": encoding})
    assert (response.status_code, "max_body_bytes" in response.json()["error"]) == (400, True)
    assert resident(service, "VmHWM") - before < GROWTH
    twice = client.post(
        "/v2/models/adder/infer", content=gzip.compress(bomb), headers={"Content-Encoding": "gzip, gzip"}
    )
    assert twice.status_code == 501


NAMES = [
    "..",
    "%2e%2e",
    "..%2f..%2fsecret.bin",
    "%2fetc%2fpasswd",
    "adder%00",
    "adder%0a",
    "a" * 4000,
    "%ff%fe",
    "%",
    "~",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["GET /v2/models/{}", "POST /v2/models/{}/infer", "GET /v1/attention/{}"])
def test_names_that_are_paths_are_404(service, name, form):
    request = form.format(name)
    found = said(service, f"{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n" + "{}")
    assert re.match(rb"HTTP/1.1 40[045] ", found), found
    assert SECRET.encode() not in found
    assert b"Traceback" not in found


@pytest.mark.parametrize(
    "name", ["..%2fadder", "..", ".", "%2fetc", "adder%2f1", "adder%00", "a" * 4000, "%F0%9F%92%A3"]
)
@pytest.mark.parametrize("what", ["load", "unload"])
def test_names_that_are_paths_are_not_loaded(service, name, what):
    path = f"/v2/repository/models/{name}/{what}"
    found = said(service, f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n" + "{}")
    if what == "unload" and found.startswith(b"HTTP/1.1 200 "):  # what is not loaded needs no unload
        assert found.endswith(b"\r\n\r\n"), found
    else:
        assert re.match(rb"HTTP/1.1 4(00|04|05) ", found), found
    with closing(Connection(service.port)) as connection:
        connection.add()


@pytest.mark.parametrize("character", ["%0a", "%00", "%1b%5b2J", "%7f", "%c2%85", "%e2%80%ae"])
def test_control_characters_are_no_part_of_a_name(client, models, character):
    """Neither of one that is loaded with its files, nor of a folder."""
    model = base64.b64encode((models / "adder" / "1" / "model.onnx").read_bytes()).decode()
    files = {"parameters": {"config": "{}", "file:1/model.onnx": model}}
    response = client.post(f"/v2/repository/models/added{character}/load", json=files)
    assert (response.status_code, "no name of a folder" in response.text) == (400, True)
    folder = models / f"added{unquote(character)}" / "1"
    if character != "%00":
        folder.mkdir(parents=True)
        shutil.copy(models / "adder" / "1" / "model.onnx", folder)
        try:
            assert client.post(f"/v2/repository/models/added{character}/load").status_code in (400, 404)
            assert not any("added" in line["name"] for line in client.post("/v2/repository/index").json())
        finally:
            shutil.rmtree(folder.parent)


REASONS = {
    "reaches_up": "external",
    "reaches_out": "external",
    "reaches_nothing": "weights.bin",
    "stranger": "evil",
    "circle": "acyclic",
    "unreadable": "version 1/model.onnx failed",
}


@pytest.mark.parametrize("name", REASONS)
def test_files_that_reach_out_are_not_served(client, models, name):
    """The index says why; the file outside was not read, and no path of this machine is told."""
    lines = {line["name"]: line for line in client.post("/v2/repository/index").json()}
    assert lines[name]["state"] == "UNAVAILABLE"
    assert REASONS[name].lower() in lines[name]["reason"].lower()
    for text in (json.dumps(lines), client.post(f"/v2/repository/models/{name}/load").text):
        assert str(models) not in text
        assert SECRET not in text
    assert lines["adder"]["state"] == "READY"
    assert client.get(f"/v2/models/{name}/ready").status_code == 404


def test_a_client_that_does_not_read_is_not_waited_for(service):
    """Its answers fill its own buffers, and then it is read from no more."""
    with closing(socket.create_connection(("127.0.0.1", service.port), timeout=1)) as raw:
        request = f"{INFER}Content-Length: {len(ADD)}\r\n\r\n{ADD}".encode() * 50
        with suppress(TimeoutError, ConnectionError):
            for _ in range(2000):
                raw.sendall(request)
        assert np.median([timed(service) for _ in range(5)]) < 0.5


def timed(service: Service) -> float:
    start = time.monotonic()
    alive(service)
    return time.monotonic() - start
