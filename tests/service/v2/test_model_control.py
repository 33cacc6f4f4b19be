"""Load and unload as Triton's clients and example scripts use them."""

import asyncio
import base64
import json
import logging
import shutil
import textwrap
from collections import Counter
from types import SimpleNamespace

import pytest
from starlette.requests import Request

from service.base.budget import MemoryBudget
from service.base.errors import Overloaded, TooMuchMemory
from service.v2 import repository as v2_repository
from service.v2.repository import MAX_CONTROL_BYTES, MAX_LOAD_JSON_BYTES
from service.v2.schemas import IndexRequest
from tests.support import graphs
from tests.support.application import opened, running
from tests.support.v2 import ADD, error, infer

LOAD, UNLOAD = (f"/v2/repository/models/adder/{what}" for what in ("load", "unload"))
BATCHES_OF_4 = json.dumps({"max_batch_size": 4})


@pytest.fixture
def control(tmp_path):
    graphs.adder(tmp_path / "adder" / "1")
    with running(tmp_path, model_control_mode="explicit") as client:
        yield client


def rows(client):
    return client.get("/v2/models/adder/config").json()["max_batch_size"]


def load(client, **parameters):
    response = client.post(LOAD, json={"parameters": parameters})
    assert response.status_code == 200, response.text


def test_what_a_load_has_said_is_kept_until_an_unload(control):
    load(control, config=BATCHES_OF_4)
    load(control)
    assert rows(control) == 4
    assert control.post(LOAD, json={"parameters": {"config": "{"}}).status_code == 400
    load(control)
    assert rows(control) == 4
    load(control, config="{}")  # another configuration replaces the first, whole
    assert rows(control) == 1024
    load(control, config=BATCHES_OF_4)
    assert control.post(UNLOAD).status_code == 200
    load(control)
    assert rows(control) == 1024


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_plain_load_after_one_with_files_is_of_the_repository(control, tmp_path, ending):
    """As in Triton, which keeps the configuration of a load unless files came with it. Triton's C++ client breaks their
    base64 each 72 characters, and ends it with a line break."""
    graphs.adder(tmp_path / "elsewhere", 10.0)
    text = base64.b64encode((tmp_path / "elsewhere" / "model.onnx").read_bytes()).decode()
    lines = ending.join([*textwrap.wrap(text, 72), ""])
    assert lines.count(ending) > 2
    load(control, **{"config": BATCHES_OF_4, "file:5/model.onnx": lines})
    assert infer(control, "adder", ADD).json()["outputs"][0]["data"] == [12, 14, 16]
    assert rows(control) == 4
    load(control)
    assert infer(control, "adder", ADD).json()["outputs"][0]["data"] == [3, 5, 7]
    assert rows(control) == 1024


def test_the_body_of_a_control_request_is_in_the_budget_until_it_is_parsed():
    budget = MemoryBudget(100, Overloaded, Counter())
    app = SimpleNamespace(state=SimpleNamespace(budget=budget))

    def read(*pieces):
        messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
        messages[-1]["more_body"] = False
        used = []

        async def receive():
            used.append(budget.used)
            return messages[len(used) - 1]

        request = Request({"type": "http", "state": {"headers": {}}, "app": app}, receive)
        try:
            return asyncio.run(v2_repository.read_body(request, IndexRequest)), used
        finally:
            assert budget.used == 0

    assert read(b'{"ready": ', b"true}") == (IndexRequest(ready=True), [0, 10])
    with pytest.raises(TooMuchMemory):
        read(b"{" + b" " * 59, b" " * 60)


SETTINGS = ["/v2/logging", "/v2/trace/setting", "/v2/models/adder/trace/setting", "/v2/repository/index", UNLOAD]


@pytest.mark.parametrize("path", SETTINGS)
def test_a_control_request_is_short(control, path):
    response = control.post(path, content=b" " * (MAX_CONTROL_BYTES + 1))
    error(response, 400, "exceeds the maximum allowed, 65,536 bytes (of control requests)")
    fields = {f"x{number}": None for number in range(65)}
    error(control.post(path, json=fields), 400, "the body: 65 fields, more than the 64 allowed")
    if path in (UNLOAD, LOAD):
        error(control.post(path, json={"parameters": fields}), 400, "parameters: 65 fields, more than the 64 allowed")


BEFORE = b'{"parameters": {"config": "{}", "file:5/model.onnx": "%b", ' % (b"A" * MAX_CONTROL_BYTES)
LOADS = {
    "many parameters": (b'{"parameters": {%b}}' % b",".join([b'"x":1'] * MAX_CONTROL_BYTES), "a file is a parameter"),
    "a list of numbers": (b'{"parameters": {"config": [%b1]}}' % (b"1," * MAX_CONTROL_BYTES), "parameters.config: exp"),
    "a list of lists": (BEFORE + b'"x": [[],[]]}}', "parameters.x: expected a string, a number"),
    "a long config": (BEFORE + b'"config": "%b"}}' % (b"x" * (MAX_CONTROL_BYTES + 1)), "config: expected at most 65,5"),
    "a config that is no text": (BEFORE + b'"config": "%b"}}' % (b"\\x" * 4000), "config: Invalid JSON"),
    "a file that is no base64": (BEFORE + b'"file:6/x": "%b"}}' % (b"!" * 5000), "file:6/x: invalid base64"),
}


@pytest.mark.parametrize(("body", "said"), LOADS.values(), ids=LOADS)
def test_a_load_is_parsed_without_its_long_texts(control, monkeypatch, body, said):
    parsed = []
    parse = v2_repository.from_json
    monkeypatch.setattr(v2_repository, "from_json", lambda content: parsed.append(len(content)) or parse(content))
    error(control.post(LOAD, content=body), 400, said)
    assert max(parsed, default=0) <= MAX_LOAD_JSON_BYTES


def test_a_load_may_bring_long_files_behind_a_long_config(control, tmp_path):
    """Its escaped quotation marks do not end the cutting."""
    graphs.adder(tmp_path / "elsewhere", 10.0)
    content = (tmp_path / "elsewhere" / "model.onnx").read_bytes()
    config = json.dumps({"max_batch_size": 4, "version_policy": {"all": {f"a{number}": "" for number in range(2000)}}})
    files = {
        "file:5/other": base64.b64encode(bytes(10**6)).decode(),
        "file:5/model.onnx": base64.b64encode(content).decode(),
    }
    load(control, config=config, **files)
    assert infer(control, "adder", ADD).json()["outputs"][0]["data"] == [12, 14, 16]
    assert rows(control) == 4


def test_few_failures_of_files_that_clients_sent_are_remembered(control, monkeypatch):
    monkeypatch.setattr("service.repository.repository.MAX_FAILURES", 3)
    broken = {"parameters": {"config": "{}", "file:1/model.onnx": base64.b64encode(b"broken").decode()}}
    for name in "abcde":
        assert control.post(f"/v2/repository/models/{name}/load", json=broken).status_code == 400
    index = control.post("/v2/repository/index", json={}).json()
    assert {line["name"] for line in index if line.get("state") == "UNAVAILABLE"} == {"c", "d", "e"}


def test_to_unload_what_is_not_loaded_changes_nothing(control):
    for name in ("adder", "adder", "nothing"):
        response = control.post(f"/v2/repository/models/{name}/unload", json={"parameters": {}})
        assert (response.status_code, response.content) == (200, b"")
    assert control.get("/v2/models/adder/ready").status_code == 404
    load(control)
    assert infer(control, "adder", ADD).status_code == 200


def test_a_folder_with_leading_zeros_is_no_version(tmp_path, caplog):
    graphs.adder(tmp_path / "adder" / "2")
    for name in ("003", "0", "10a"):
        shutil.copytree(tmp_path / "adder" / "2", tmp_path / "adder" / name)
    with caplog.at_level(logging.WARNING, "heed"):
        repository = opened(tmp_path, versions="all")
    assert list(repository.models["adder"]) == [2]
    assert [(line.name, line.version) for line in repository.index()] == [("adder", 2)]
    named = [record.getMessage() for record in caplog.records if "is not a version" in record.getMessage()]
    assert [line.split()[0] for line in named] == [str(tmp_path / "adder" / name) for name in ("0", "003")]


CONFIG = r"""
# max_queue_delay: 7
name: "adder"
backend: "onnxruntime"
max_batch_size: 8  # rows: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
instance_group [ { kind: KIND_CPU } ]
dynamic_batching { default_queue_policy { allow_timeout_override: true } }
parameters { key: "a { \" b: " value: { string_value: 'c: {' } }
parameters: { key: "d" value { string_value: "e" } }
"""


def test_a_config_pbtxt_is_named_in_a_warning(tmp_path, caplog):
    """With the fields that are not followed, once a load."""
    for name in ("adder", "other"):
        graphs.adder(tmp_path / name / "1")
    (tmp_path / "adder" / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "other" / "config.pbtxt").write_text('name: "other"\nplatform: "onnxruntime_onnx"\n')

    def warned():
        lines = [record.getMessage() for record in caplog.records if "config.pbtxt" in record.getMessage()]
        caplog.clear()
        return lines

    expected = (
        "model adder: its config.pbtxt is ignored "
        "(max_batch_size, input, instance_group, dynamic_batching, parameters); "
        "set these in the model file, the settings or a load request"
    )
    with caplog.at_level(logging.WARNING, "heed"):
        repository = opened(tmp_path, versions="all")
        assert warned() == [expected]
        repository.poll()
        assert warned() == []
        repository.load_model("adder")
        assert warned() == [expected]
        (tmp_path / "adder" / "config.pbtxt").unlink()
        (tmp_path / "adder" / "config.pbtxt").mkdir()
        repository.load_model("adder")
        assert "it cannot be read" in warned()[0]
    assert repository.model("adder").max_batch_size == 1024


@pytest.mark.parametrize(("settings", "status"), [({}, 200), ({"allow_timeout_override": True}, 504)])
def test_a_timeout_is_a_deadline_by_setting(adder, settings, status):
    late = {**ADD, "parameters": {"timeout": 1}}
    with running(adder, **settings) as client:
        for _ in range(3):  # the first is read as a whole, the others by the plan of the first
            assert infer(client, "adder", late).status_code == status
        assert ("dynamic_batching" in client.get("/v2/models/adder/config").json()) == (status == 504)
