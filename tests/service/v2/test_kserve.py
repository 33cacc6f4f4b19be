"""KServe's InferenceRESTClient and tritony, unmodified, in an environment of their own: they need protobuf below 7, and
KServe brings a server, Kubernetes and pandas with it."""

import json
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.extended
LOAD, UNLOAD = (f"/v2/repository/models/adder/{what}" for what in ("load", "unload"))
BATCHES_OF_4 = {"parameters": {"config": json.dumps({"max_batch_size": 4, "version_policy": {"all": {}}})}}


def results(python: Path, name: str, address: str) -> dict | list:
    script = Path(__file__).with_name("other_clients.py")
    done = subprocess.run([python, script, name, address], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_kserve(kserve_python, address):
    found = results(kserve_python, "kserve", address)
    assert found["ready"] == [True, True, True, False]
    for form in ("json", "binary"):
        assert found[form] == {"id": "one", "weights": [1, 0, 0.5, 0.5], "output": [1, 1, 1, 1]}
    assert found["dict"] == [1, 1, 1, 1]
    assert "unexpected inference output 'nothing'" in found["error"]


def test_tritony(kserve_python, server, address):
    """It learns the model's inputs from its configuration, cuts ten rows into batches, and sends timeout 30."""
    assert server.post(LOAD, json=BATCHES_OF_4).status_code == 200
    try:
        of_rows = [[float(2 * row + 1)] * 3 for row in range(10)]
        assert results(kserve_python, "tritony", address) == [of_rows, of_rows]
    finally:
        assert [server.post(path).status_code for path in (UNLOAD, LOAD)] == [200, 200]
