"""Load and unload as Triton's clients and example scripts use them."""

import base64
import json
import logging
import shutil
import textwrap

import pytest

from tests.support import graphs
from tests.support.application import opened, running
from tests.support.v2 import ADD, infer

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
    named = [record.getMessage() for record in caplog.records if "is no version" in record.getMessage()]
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
        "model adder: its config.pbtxt is not followed "
        "(max_batch_size, input, instance_group, dynamic_batching, parameters); "
        "the model file, the settings and a load's config count"
    )
    with caplog.at_level(logging.WARNING, "heed"):
        repository = opened(tmp_path, versions="all")
        assert warned() == [expected]
        repository.poll()
        assert warned() == []
        repository.load_model("adder")
        assert warned() == [expected]
        (tmp_path / "adder" / "config.pbtxt").write_bytes(b"\xff\xfe { unreadable: 1")
        repository.load_model("adder")
        assert "its braces do not match" in warned()[0]
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
