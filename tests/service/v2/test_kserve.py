"""KServe's InferenceRESTClient and tritony, unmodified, in an environment of their own: they need protobuf below 7, and
KServe brings a server, Kubernetes and pandas with it."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.extended
CONFIG = {"max_batch_size": 4, "version_policy": {"all": {}}}
BATCHES_OF_4 = {"parameters": {"config": json.dumps(CONFIG)}}


@pytest.fixture(scope="session")
def said(kserve_python, server) -> dict:
    script = Path(__file__).with_name("kserve_calls.py")
    done = subprocess.run([kserve_python, script, str(server.base_url)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_health(said):
    assert (said["live"], said["ready"], said["model ready"], said["nothing ready"]) == (True, True, True, False)


@pytest.mark.parametrize("form", ["json", "binary"])
def test_infer(said, form):
    np.testing.assert_array_equal(np.reshape(said[form]["weights"], (2, 2)), [[1, 0], [0.5, 0.5]])
    np.testing.assert_array_equal(np.reshape(said[form]["output"], (2, 2)), np.ones((2, 2)))
    assert said[f"{form} id"] == "one"


def test_a_plain_dict(said):
    assert said["dict"] == [1, 1, 1, 1]


@pytest.mark.parametrize("way", ["plain", "asyncio"])
def test_tritony(kserve_python, server, way):
    """It learns the model's inputs from its configuration, cuts ten rows into batches, and sends timeout 30."""
    assert server.post("/v2/repository/models/adder/load", json=BATCHES_OF_4).status_code == 200
    try:
        script = Path(__file__).with_name("tritony_calls.py")
        address = f"{server.base_url.host}:{server.base_url.port}"
        done = subprocess.run([kserve_python, script, address, way], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1]) == [[float(2 * row + 1)] * 3 for row in range(10)]
    finally:
        for what in ("unload", "load"):
            assert server.post(f"/v2/repository/models/adder/{what}").status_code == 200


def test_an_error_is_told(said):
    assert "unexpected inference output 'nothing'" in said["error"]
