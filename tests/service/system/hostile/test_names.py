"""Names that are paths or hold control characters, and model files that mean harm."""

import base64
import json
import re
import shutil
from urllib.parse import unquote

import pytest

from tests.support.hostile import SECRET, answer_to

PATHS = ["GET /v2/models/{}", "POST /v2/models/{}/infer", "GET /v1/attention/{}"]
LOADS = ["POST /v2/repository/models/{}/load", "POST /v2/repository/models/{}/unload"]
NAMES = ["..", "%2e%2e", "%2fetc%2fpasswd", "adder%00", "a" * 4000]
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
    assert (response.status_code, "no name of a folder" in response.text) == (400, True)
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
