"""The wheel in an environment of its own: ``pip install`` of it and ``heed serve`` answer, without torch or a checkout.

It takes packages from the package index.
"""

import json
import os
import re
import subprocess
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from scripts import wheel
from tests.support.waiting import until

BROKEN = "raise SystemExit('a folder of the user was imported in place of Heed\\'s')\n"
ANSWER = {"block": "scaled_dot_product", "weights": [[1.0, 0.0], [0.33023846, 0.66976154]]}
BODY = {"query": [[1, 0], [0, 1]], "key": [[1, 0], [0, 1]], "value": [[1, 0], [0, 1]], "is_causal": True}


@pytest.fixture(scope="module")
def built(repository, tmp_path_factory) -> Path:
    return wheel.build(Path(repository), tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def commands(built, tmp_path_factory) -> Path:
    """The folder of the new environment's commands."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True, symlinks=True)
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, f"{built}[cpu]"], check=True)
    return folder / "bin"


@pytest.fixture
def project(tmp_path) -> Path:
    """A user's folder with packages of the same names as Heed's."""
    for name in ("service", "models", "export", "loadtest", "heed_client"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(BROKEN)
    return tmp_path


def environment(**variables: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("HEED_", "PYTHON"))}
    return own | variables


@contextmanager
def serving(command: list[object], folder: Path, **variables: str) -> Iterator[tuple[str, Path]]:
    """The URL of a server, and its log."""
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*map(str, command), "--port", "0"], cwd=folder, env=environment(**variables), stdout=file, stderr=file
        )
        try:
            until(lambda: " ready: " in log.read_text() or process.poll() is not None)
            yield re.search(r"listening on (\S+)", log.read_text())[1], log
        finally:
            process.terminate()
            process.wait(30)


def answered(url: str) -> dict:
    body = json.dumps(BODY | {"outputs": ["weights"]}).encode()
    request = Request(f"{url}/v1/attention/scaled_dot_product", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=30) as response:
        return json.load(response)


def run(folder: Path, *command: object) -> subprocess.CompletedProcess:
    return subprocess.run([*command], cwd=folder, env=environment(), capture_output=True, text=True)


@pytest.mark.extended
@pytest.mark.parametrize("start", [["heed"], ["python", "-m", "heed"]], ids=" ".join)
def test_it_serves_in_a_project_with_folders_of_the_same_names(commands, project, start):
    """``python -m`` puts the working directory first, PYTHONPATH puts it before what is installed."""
    command = [commands / start[0], *start[1:], "serve"]
    with serving(command, project, PYTHONPATH=str(project)) as (url, log):
        assert answered(url) == ANSWER
        assert "serving the built-in blocks of this installation" in log.read_text()


@pytest.mark.extended
def test_it_has_neither_torch_nor_a_checkout(commands, tmp_path):
    find = "import importlib.util as u; print([u.find_spec(name) for name in ('torch', 'onnx')])"
    assert run(tmp_path, commands / "python", "-c", find).stdout == "[None, None]\n"
    listed = run(tmp_path, commands / "heed", "list")
    assert (listed.returncode, "scaled_dot_product" in listed.stdout) == (0, True)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("command", "package", "extra"), [("export", "rich", "cpu,export"), ("run", "httpx", "client")]
)
def test_a_command_names_the_extra_that_is_missing(commands, tmp_path, command, package, extra):
    done = run(tmp_path, commands / "heed", command, "multi_head")
    assert done.returncode == 1
    assert f"the package {package} is not installed: pip install 'heed-attention[{extra}]'" in done.stderr


def test_a_wheel_needs_blocks(tmp_path):
    with pytest.raises(ValueError, match="holds no blocks"):
        wheel.build(tmp_path, tmp_path)


@pytest.mark.extended
def test_it_holds_each_block_once(built, repository):
    with zipfile.ZipFile(built) as archive:
        graphs = [name for name in archive.namelist() if name.endswith("/model.onnx")]
    assert sorted(name.split("/")[2] for name in graphs) == sorted(path.name for path in Path(repository).iterdir())
    assert built.name.endswith("-py3-none-any.whl")
