"""`scripts/install_torch.py` where PyTorch's own index cannot be reached: what a package index has is installed."""

import functools
import http.server
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pip
import pytest

from scripts.install_torch import pinned_torch

SCRIPT = Path(__file__).parents[2] / "scripts" / "install_torch.py"
VERSION = pinned_torch().partition("==")[2]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index(tmp_path) -> Iterator[tuple[str, Path]]:
    """The address of a package index, and the folder of its wheels of torch."""
    folder = tmp_path / "index" / "torch"
    folder.mkdir(parents=True)
    handler = functools.partial(Quiet, directory=folder.parent)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()


@pytest.fixture
def python(tmp_path) -> Path:
    """The interpreter of an environment that has pip and nothing else."""
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "pip").symlink_to(Path(pip.__file__).parent)
    return folder / "bin" / "python"


def put_torch(folder: Path, *requirements: str) -> None:
    """A wheel of torch with these requirements, which holds nothing."""
    about = f"torch-{VERSION}.dist-info"
    metadata = [
        "Metadata-Version: 2.1",
        "Name: torch",
        f"Version: {VERSION}",
        *(f"Requires-Dist: {name}" for name in requirements),
    ]
    with zipfile.ZipFile(folder / f"torch-{VERSION}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{about}/METADATA", "\n".join(metadata) + "\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


def run(python: Path, index: str) -> subprocess.CompletedProcess:
    """The script, where a proxy that nobody runs is the way to every other machine."""
    environment = {name: text for name, text in os.environ.items() if not name.lower().startswith(("pip_", "python"))}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index, "PIP_NO_CACHE_DIR": "1"}
    environment |= {"https_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.1"}
    return subprocess.run([python, SCRIPT], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("requirements", "said"),
    [
        (["filelock"], [f"torch=={VERSION}: the CPU build that pip finds\n"]),
        (
            ["filelock", "nvidia-cudnn-cu13==9.20.0.48; platform_system == 'Linux'"],
            ["GB", "no CPU build comes from https://download.pytorch.org/whl/cpu"],
        ),
    ],
    ids=["a CPU build", "the build with CUDA"],
)
def test_the_build_in_the_index_is_installed_once(python, index, requirements, said):
    address, folder = index
    put_torch(folder, *requirements)
    done = run(python, address)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert all(words in done.stdout for words in said)
    assert any(python.parents[1].glob(f"lib/python*/site-packages/torch-{VERSION}.dist-info"))
    again = run(python, address)
    assert (again.returncode, again.stdout) == (0, "")


def test_without_any_build_it_says_what_to_do(python, index):
    address, _ = index
    done = run(python, address)
    assert done.returncode == 1
    assert f"torch=={VERSION}: pip finds no build for this machine" in done.stderr
    assert "PIP_FIND_LINKS" in done.stderr
