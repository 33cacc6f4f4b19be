"""KServe's InferenceRESTClient, unmodified, in an environment of its own: it needs protobuf below 7, and brings a
server, Kubernetes and pandas with it. The environment is made once and kept in pytest's cache."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

KSERVE = "kserve==0.21.0"


@pytest.fixture(scope="session")
def kserve_python(request) -> Path:
    folder = Path(request.config.cache.mkdir(f"{KSERVE}-{sys.version_info.major}.{sys.version_info.minor}"))
    python = folder / "bin" / "python"
    with FileLock(f"{folder}.lock"):  # of pytest-xdist's workers one makes it
        if not (folder / "complete").exists():
            venv.create(folder, with_pip=True, clear=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", KSERVE], check=True)
            (folder / "complete").touch()
    return python


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


def test_an_error_is_told(said):
    assert "unexpected inference output 'nothing'" in said["error"]
