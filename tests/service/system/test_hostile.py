"""Requests and models that mean harm: the server refuses them, answers on, and does not grow."""

import base64
import json
import re
import shutil
import socket
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest

from tests.support import graphs
from tests.support.http_client import ADD
from tests.support.server import MIB, ServerProcess, started
from tests.support.waiting import until

LIMITS = {
    "--workers": 1,
    "--max-concurrent-runs": 1,
    "--model-control-mode": "explicit",
    "--max-body-bytes": 4 * MIB,
    "--transfer-timeout-seconds": 1.5,
    "--max-memory-bytes": 256 * MIB,
    "--ready-when": "any",  # of the models some are refused
}
GROWTH = 48 * MIB  # what one test may leave behind: buffers of bodies of 4 MiB, kept by the allocator
SECRET = "the-secret"
SDPA = "/v1/attention/scaled_dot_product"
INFER = "POST /v2/models/adder/infer HTTP/1.1\r\nHost: x\r\n"
CHUNKED = f"{INFER}Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def models(repository, tmp_path_factory) -> Path:
    """An honest model, a block, and some that cannot be loaded."""
    folder = tmp_path_factory.mktemp("models")
    graphs.adder(folder / "adder" / "1")
    (folder / "scaled_dot_product").symlink_to(repository / "scaled_dot_product")
    (folder / "secret.bin").write_bytes(SECRET.encode() * 100)
    graphs.parse(folder / "stranger" / "1", "(float[3] x) => (float[3] y) { y = evil.Exfiltrate(x) }")
    graphs.parse(folder / "circle" / "1", "(float[3] x) => (float[3] y) { y = Identity(z) z = Identity(y) }")
    (folder / "unreadable" / "1").mkdir(parents=True)
    (folder / "unreadable" / "1" / "model.onnx").symlink_to("/proc/self/mem")  # even to root
    return folder


@pytest.fixture(scope="module")
def service(models, tmp_path_factory):
    flags = [str(part) for flag in LIMITS.items() for part in flag]
    with started(models, tmp_path_factory.mktemp("log") / "log", *flags) as service:
        for _ in range(200):
            service.add()
        yield service
        assert "Traceback" not in service.log.read_text()


@pytest.fixture(autouse=True)
def unharmed(service):
    """After each test the server answers and is hardly larger."""
    before = service.resident()
    yield
    service.add()
    until(lambda: service.resident() - before < GROWTH)  # an idle server looks every 5 s what it can free


@pytest.fixture(scope="module")
def client(service):
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=service.url, timeout=30, limits=limits) as client:
        yield client


def answer_to(service: ServerProcess, *pieces: str, pause: float = 0) -> bytes:
    """What the server answers to ``pieces``, sent until it closes the connection."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as raw:
        with suppress(ConnectionError):
            for piece in pieces:
                raw.sendall(piece.encode())
                time.sleep(pause)
        answer = b""
        with suppress(ConnectionError):
            while chunk := raw.recv(65536):
                answer += chunk
                if b"\r\n\r\n" in answer and b"connection: close" not in answer.lower():
                    break
        return answer


def of_shape(shape, data):
    return {"inputs": [{"name": name, "shape": shape, "datatype": "FP32", "data": data} for name in ("x", "z")]}


def many():
    return [{"name": f"x{number}", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]} for number in range(20_000)]


DOCUMENTS = {
    "thousands of tensors": lambda: {"inputs": many()},
    "one tensor thousands of times": lambda: {"inputs": [many()[0] | {"name": "x"}] * 20_000},
    "thousands of outputs": lambda: {"inputs": many()[:1], "outputs": [{"name": f"{n}"} for n in range(50_000)]},
    "a parameter of a million": lambda: {**json.loads(ADD), "parameters": {"p": [1] * 500_000}},
    "a shape of a million": lambda: of_shape([1] * 500_000, [1]),
    "a product that is zero past 64 bits": lambda: of_shape([2**62, 4], []),
    "two negative dimensions": lambda: of_shape([-1, -3], [1, 2, 3]),
    "a dimension of words": lambda: of_shape(["1", 3], [1, 2, 3]),
    "too many numbers": lambda: of_shape([1, 3], [1.0] * 100_000),
}
BODIES = {
    "deep lists": b"[" * MIB,
    "deep data": b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": ' + b"[" * MIB,
    "deep objects": b'{"a":' * 200_000,
    "a number of a million digits": ADD.replace("[1, 2, 3]", "[1, 2, " + "3" * MIB + "]").encode(),
    "surrogates": b'{"id": "\\ud800", "inputs": []}',
    "a null byte": b'{"inputs\0": []}',
}


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_400_of_documents(client, document):
    refused(client, json.dumps(document()).encode())


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_400_of_bodies(client, body):
    refused(client, body)


def refused(client, body):
    response = client.post("/v2/models/adder/infer", content=body)
    assert (response.status_code, set(response.json())) == (400, {"error"})
    assert len(response.content) < 10_000


NATIVE = {
    "a base64 product past 64 bits": (
        {"query": {"shape": [2**32, 2**32], "dtype": "float32", "base64": "AACAPw=="}},
        422,
    ),
    "objects": ({"query": [[{}] * 100_000]}, 422),
    "rows of nothing": ({"query": [[]] * 200_000}, 422),
    "thousands of fields": ({f"field{n}": [[1]] for n in range(100_000)}, 400),
}


@pytest.mark.parametrize(("change", "status"), NATIVE.values(), ids=NATIVE)
def test_native_bodies(client, change, status):
    response = client.post(SDPA, json={"key": [[1]], "value": [[1]], **change})
    assert response.status_code == status
    assert "query" not in change or response.json()["field"] == "query"
    assert len(response.content) < 10_000


@pytest.mark.parametrize("outputs", [["weights"], ["scores", "weights"]])
def test_more_pairs_than_fit_are_refused_before_the_work(service, client, outputs):
    """100,000 queries and keys: 40 GB of weights, of a body of 600 KB."""
    rows = {"shape": [100_000, 1], "data": [1] * 100_000}
    before = service.resident("VmHWM")
    response = client.post(SDPA, json={"query": rows, "key": rows, "value": rows, "outputs": outputs})
    assert (response.status_code, "max_memory_bytes" in response.json()["detail"]) == (413, True)
    tensor = {"shape": [1, 1, 100_000, 1], "datatype": "FP32", "data": [1] * 100_000}
    inputs = [{"name": name, **tensor} for name in ("query", "key", "value")]
    body = {"inputs": inputs, "outputs": [{"name": name} for name in outputs]}
    response = client.post("/v2/models/scaled_dot_product/infer", json=body)
    assert (response.status_code, "max_memory_bytes" in response.json()["error"]) == (400, True)
    assert service.resident("VmHWM") - before < 4 * GROWTH


@pytest.mark.parametrize(("encoding", "wbits"), [("gzip", 31), pytest.param("deflate", 15, marks=pytest.mark.extended)])
def test_a_decompression_bomb_does_not_go_off(service, client, encoding, wbits):
    """A quarter of a gigabyte in a quarter of a megabyte."""
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(256)) + packer.flush()
    assert len(bomb) < MIB // 2
    before = service.resident("VmHWM")
    response = client.post("/v2/models/adder/infer", content=bomb, headers={"Content-Encoding": encoding})
    assert (response.status_code, "max_body_bytes" in response.json()["error"]) == (400, True)
    assert service.resident("VmHWM") - before < GROWTH


PATHS = ["GET /v2/models/{}", "POST /v2/models/{}/infer", "GET /v1/attention/{}"]
LOADS = ["POST /v2/repository/models/{}/load", "POST /v2/repository/models/{}/unload"]
NAMES = ["..", "%2e%2e", "%2fetc%2fpasswd", "adder%00", "a" * 2000]
CASES = [
    *((path, name) for path in PATHS for name in [*NAMES, "..%2f..%2fsecret.bin", "adder%0a", "%ff%fe", "%", "~"]),
    *((path, name) for path in LOADS for name in [*NAMES, "..%2fadder", ".", "adder%2f1", "%F0%9F%92%A3"]),
]


@pytest.mark.parametrize(("path", "name"), CASES, ids=lambda part: part[:40])
def test_names_that_are_paths_are_not_found(service, path, name):
    head = f"{path.format(name)} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n"
    answer = answer_to(service, head + "{}")
    if path.endswith("unload") and answer.startswith(b"HTTP/1.1 200 "):  # what is not loaded needs no unload
        assert answer.endswith(b"\r\n\r\n"), answer
    else:
        assert re.match(rb"HTTP/1.1 40[045] ", answer), answer
    assert SECRET.encode() not in answer
    assert b"Traceback" not in answer


@pytest.mark.parametrize("character", ["%0a", "%00", "%1b%5b2J", "%7f", "%c2%85", "%e2%80%ae"])
def test_control_characters_are_no_part_of_a_name(client, models, character):
    """Neither of one that is loaded with its files, nor of a folder."""
    file = models / "adder" / "1" / "model.onnx"
    files = {"parameters": {"config": "{}", "file:1/model.onnx": base64.b64encode(file.read_bytes()).decode()}}
    response = client.post(f"/v2/repository/models/added{character}/load", json=files)
    assert (response.status_code, "not a valid folder name" in response.text) == (400, True)
    if character != "%00":
        folder = models / f"added{unquote(character)}"
        (folder / "1").mkdir(parents=True)
        try:
            shutil.copy(file, folder / "1")
            assert client.post(f"/v2/repository/models/added{character}/load").status_code in (400, 404)
            assert not any("added" in line["name"] for line in client.post("/v2/repository/index").json())
        finally:
            shutil.rmtree(folder)


REASONS = {"stranger": "evil", "circle": "acyclic", "unreadable": "version 1/model.onnx failed"}


def test_harmful_files_are_not_served(client, models):
    """The index says why, without a path of this machine; files outside are in test_shared_weights.py."""
    lines = {line["name"]: line for line in client.post("/v2/repository/index").json()}
    said = json.dumps(lines)
    for name, reason in REASONS.items():
        assert lines[name]["state"] == "UNAVAILABLE"
        assert reason in lines[name]["reason"].lower()
        said += client.post(f"/v2/repository/models/{name}/load").text
        assert client.get(f"/v2/models/{name}/ready").status_code == 404
    assert str(models) not in said
    assert lines["adder"]["state"] == "READY"


SLOW = {
    "a head": ["GET /v2 HTTP/1.1\r\n", *["X"] * 20],
    "headers": ["GET /v2 HTTP/1.1\r\n", *[f"X-{n}: y\r\n" for n in range(20)]],
    "a body": [f"{INFER}Content-Length: 1000\r\n\r\n", *["{"] * 20],
    "no body": [f"{INFER}Content-Length: 1000\r\n\r\n", *[""] * 20],
    "chunks": [CHUNKED, *["1\r\n{\r\n"] * 20],
    "trailers": [f"{CHUNKED}0\r\n", *[f"X-{n}: y\r\n" for n in range(20)]],
}


def test_slow_requests_are_cut_off_and_connections_without_a_word_closed(service):
    with ThreadPoolExecutor() as threads:
        silent = threads.submit(answer_to, service)
        answers = [threads.submit(answer_to, service, *pieces, pause=0.15) for pieces in SLOW.values()]
    assert silent.result() == b""
    for name, answer in zip(SLOW, answers, strict=True):
        assert answer.result().startswith(b"HTTP/1.1 408 Request Timeout\r\n"), name
        assert b"(transfer_timeout_seconds)" in answer.result(), name


LONG = {
    "a header": ["GET /v2 HTTP/1.1\r\nX: ", *["x" * 65536] * 400, "\r\n\r\n"],
    "a name": ["GET /v2 HTTP/1.1\r\n", *["x" * 65536] * 400, ": y\r\n\r\n"],
    "a path": ["GET /", *["x" * 65536] * 400, " HTTP/1.1\r\n\r\n"],
    "headers": ["GET /v2 HTTP/1.1\r\n", *["X-Header: y\r\n" * 5000] * 400, "\r\n"],
    "a body": [CHUNKED, *["10000\r\n" + "x" * 65536 + "\r\n"] * 1000],
    "tiny chunks": [CHUNKED, *["1\r\n{\r\n" * 10000] * 1000],
    "a chunk's extension": [CHUNKED, "1;", *["x" * 65536] * 1000],
    "a trailer": [CHUNKED, "1\r\n{\r\n0\r\nX: ", *["x" * 65536] * 1000],
    "trailers": [CHUNKED, "1\r\n{\r\n0\r\n", *["X-Trailer: y\r\n" * 5000] * 1000],
}


@pytest.mark.parametrize("pieces", LONG.values(), ids=LONG)
def test_what_is_too_long_is_refused(service, pieces):
    answer = answer_to(service, *pieces)
    assert answer == b"" or re.match(rb"HTTP/1.1 (400|408|413|431) ", answer)  # nothing: lost with the connection
    assert service.resident("VmHWM") < service.resident() + 4 * GROWTH


def test_a_head_a_little_too_long_is_told(service):
    answer = answer_to(service, "GET /v2 HTTP/1.1\r\nX: " + "x" * 66_000)
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert b"The head of the request is longer than the 65,536 bytes allowed." in answer
    counted = httpx.get(f"{service.url}/metrics").text
    assert re.search(r'heed_requests_rejected_total{reason="max_header_bytes"} [1-9]', counted)


LENGTHS = dict.fromkeys(("many", "-1", str(2**64 + 5)), b"")
LENGTHS |= {str(length): b"max_body_bytes" for length in (4 * MIB + 1, 2**40, 10**18)}  # refused before the body comes


@pytest.mark.parametrize(("length", "said"), LENGTHS.items())
def test_a_length_that_is_none_or_too_large_is_400(service, length, said):
    answer = answer_to(service, f"{INFER}Connection: close\r\nContent-Length: {length}\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert said in answer
