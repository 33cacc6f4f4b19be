"""Clients that ask each server for HTTP/2 at first: Java's HttpClient by its defaults, and ``curl --http2``.

What they send is tried in test_connection.py, wherever it is cut.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.extended
SDPA = "/v1/attention/scaled_dot_product"
INFER = "/v2/models/scaled_dot_product/infer"
TENSOR = {"shape": [1, 1, 1, 1], "datatype": "FP32", "data": [1.0]}
BODIES = {
    SDPA: {"query": [[1.0]], "key": [[1.0]], "value": [[3.0]]},
    INFER: {"inputs": [{"name": name, **TENSOR} for name in ("query", "key", "value")]},
}


def has_output(answer: str) -> bool:
    parsed = json.loads(answer)
    outputs = {of["name"]: of["data"] for of in parsed["outputs"]} if "outputs" in parsed else parsed
    return bool(outputs["output"])


def run(*command: str) -> list[str]:
    """The lines that a program prints."""
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.splitlines()


@pytest.fixture(params=BODIES, ids=["native", "v2"])
def path(request) -> str:
    return request.param


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl here: apt-get install curl")
@pytest.mark.parametrize("lines", [[], ["Transfer-Encoding: chunked"], ["Expect: 100-continue"]], ids=str)
def test_curl(client, path, lines):
    headers = [flag for line in ["Content-Type: application/json", *lines] for flag in ("--header", line)]
    url, body = str(client.base_url.join(path)), json.dumps(BODIES[path])
    flags = ["--silent", "--http2", *headers, "--data", body, "--write-out", r"\n%{http_version} %{http_code}\n"]
    first, status, second, again = run("curl", *flags, url, url)
    assert status == again == "1.1 200"
    assert has_output(first)
    assert has_output(second)


@pytest.mark.skipif(not shutil.which("javac"), reason="no JDK here: apt-get install default-jdk-headless")
def test_java(client, path):
    program, url = Path(__file__).parent / "java" / "Attend.java", client.base_url.join(path)
    lines = run("java", "-XX:TieredStopAtLevel=1", str(program), str(url), json.dumps(BODIES[path]))
    assert len(lines) == 11
    for line in lines:
        status, _, body = line.partition(" ")
        assert status == "200", line
        assert has_output(body)
