"""Clients that ask each server for HTTP/2 at first: Java's HttpClient by its defaults, and ``curl --http2``.

The real ones are run where they are installed (Debian: ``openjdk-17-jdk-headless``, ``curl``). What Java's sends is
kept here as it came over the wire, and is always tried.
"""

import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

SDPA = "/v1/attention/scaled_dot_product"
INFER = "/v2/models/scaled_dot_product/infer"
TENSOR = {"shape": [1, 1, 1, 1], "datatype": "FP32", "data": [1.0]}
BODIES = {
    SDPA: {"query": [[1.0]], "key": [[1.0]], "value": [[3.0]]},
    INFER: {"inputs": [{"name": name, **TENSOR} for name in ("query", "key", "value")]},
}
JAVA = shutil.which("javac") and shutil.which("java")  # a source file is run by what a JDK has, and a JRE has not
CURL = shutil.which("curl")

# The head of a POST by OpenJDK 17, with any path and length.
RECORDED = (
    b"POST %b HTTP/1.1\r\n"
    b"Connection: Upgrade, HTTP2-Settings\r\n"
    b"Content-Length: %d\r\n"
    b"Host: 127.0.0.1:8000\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA\r\n"
    b"Upgrade: h2c\r\n"
    b"User-Agent: Java-http-client/17.0.15\r\n"
    b"Content-Type: application/json\r\n\r\n"
)


def is_right(answer: dict) -> bool:
    outputs = {of["name"]: of["data"] for of in answer["outputs"]} if "outputs" in answer else answer
    return bool(outputs["output"])


@pytest.fixture(params=BODIES, ids=["native", "v2"])
def path(request) -> str:
    return request.param


def test_what_java_sends_is_answered_twice_on_one_connection(client, path):
    body = json.dumps(BODIES[path]).encode()
    request = RECORDED % (path.encode(), len(body)) + body
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=30) as raw:
        file = raw.makefile("rb")
        for cut in (0, request.index(b"\r\n\r\n") + 4):
            for piece in filter(None, (request[:cut], request[cut:])):
                raw.sendall(piece)
            assert file.readline() == b"HTTP/1.1 200 OK\r\n"
            length = 0
            while (line := file.readline()) != b"\r\n":
                if line.startswith(b"content-length: "):
                    length = int(line.split()[1])
            assert is_right(json.loads(file.read(length)))


@pytest.mark.skipif(CURL is None, reason="curl is not installed")
@pytest.mark.parametrize("lines", [[], ["Transfer-Encoding: chunked"], ["Expect: 100-continue"]], ids=str)
def test_curl(client, path, lines):
    headers = [flag for line in ["Content-Type: application/json", *lines] for flag in ("--header", line)]
    url = f"{client.base_url}{path[1:]}" if str(client.base_url).endswith("/") else f"{client.base_url}{path}"
    command = [CURL, "--silent", "--http2", *headers, "--data", json.dumps(BODIES[path]), url, url]
    ran = subprocess.run(
        [*command, "--write-out", r"\n%{http_version} %{http_code}\n"], capture_output=True, text=True, timeout=60
    )
    first, status, second, again = ran.stdout.splitlines()
    assert status == again == "1.1 200"
    assert is_right(json.loads(first))
    assert is_right(json.loads(second))


@pytest.mark.skipif(JAVA is None, reason="no JDK is installed")
def test_java(client, path):
    program = Path(__file__).parent / "java" / "Attend.java"
    url = str(client.base_url).rstrip("/") + path
    command = [JAVA, "-XX:TieredStopAtLevel=1", str(program), url, json.dumps(BODIES[path])]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    lines = ran.stdout.splitlines()
    assert len(lines) == 11, ran.stderr
    for line in lines:
        status, _, body = line.partition(" ")
        assert status == "200", line
        assert is_right(json.loads(body))
