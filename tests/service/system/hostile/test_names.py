"""Names that are paths or hold control characters, and model files that reach for what is not theirs."""

import base64
import json
import re
import shutil
from contextlib import closing
from urllib.parse import unquote

import pytest

from tests.support.hostile import SECRET, answer_to
from tests.support.http_client import Connection

REST = "Host: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
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
    found = answer_to(
        service, f"{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n" + "{}"
    )
    assert re.match(rb"HTTP/1.1 40[045] ", found), found
    assert SECRET.encode() not in found
    assert b"Traceback" not in found


@pytest.mark.parametrize(
    "name", ["..%2fadder", "..", ".", "%2fetc", "adder%2f1", "adder%00", "a" * 4000, "%F0%9F%92%A3"]
)
@pytest.mark.parametrize("what", ["load", "unload"])
def test_names_that_are_paths_are_not_loaded(service, name, what):
    path = f"/v2/repository/models/{name}/{what}"
    found = answer_to(
        service, f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n" + "{}"
    )
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
