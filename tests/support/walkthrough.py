"""A page's commands, run from top to bottom in a copy of the checkout, as a reader would."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from scripts.exported import fingerprint
from tests.support.documents import ROOT, Example
from tests.support.waiting import until

NOT_RUN = ("docker", "make test", "pip")  # they need docker, or would run these tests again
RESULTS = "results.json"


def walk(examples: Iterable[Example], folder: Path, repository: Path) -> None:
    """Run ``examples`` in ``folder``, and write into RESULTS what each of them printed and its exit status.

    Only the port differs from what the page says. The environment is that of this checkout, and the blocks are those
    of ``repository``, so that nothing is installed or exported that is there already.
    """
    checkout(folder, repository)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # of `make test`
    environment = own | {
        "HEED_URL": f"http://127.0.0.1:{port}",
        "PYTHONPATH": f"{folder}{os.pathsep}{folder / 'clients'}",
        "OMP_NUM_THREADS": "1",
    }
    results = []
    activated = ""
    with Server(folder, port, environment) as server:
        for example in examples:
            code = example.code.replace("8000", str(port))
            if example.language not in ("sh", "python") or code.startswith(NOT_RUN):
                continue
            if code.strip() == "make serve":
                server.restart()
                continue
            server.start()  # a page may show a request before it says how to serve
            command = (
                f"{activated}\n{code}" if example.language == "sh" else f"{activated}\npython - <<'END'\n{code}END"
            )
            done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)
            if code.startswith("source "):
                activated = code.partition("\n")[0]
            results.append([str(example), example.shown, done.returncode, done.stdout, done.stderr])
    (folder / RESULTS).write_text(json.dumps(results))


def checkout(folder: Path, repository: Path) -> None:
    """Copy what git knows, with files so old that make installs nothing, and the exported blocks into the cache.

    Skips the test where make did not make the environment: there it would install into it.
    """
    if not Path(sys.prefix, ".installed").exists():
        pytest.skip("make did not make this environment: make test")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
            os.utime(folder / name, (0, 0))
    (folder / ".venv").symlink_to(Path(sys.prefix))
    (folder / ".exports").mkdir()
    (folder / ".exports" / fingerprint(root=folder)).symlink_to(repository)


def without_times(text: str) -> str:
    """``text`` without the seconds that a command took."""
    return re.sub(r"after \d+ s", "after N s", text).strip()


class Server:
    """``make serve`` in ``folder``, at ``port``."""

    def __init__(self, folder: Path, port: int, environment: dict[str, str]) -> None:
        self._folder, self._port, self._environment = folder, port, environment
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def start(self) -> None:
        """Start it unless it runs; returns when it is ready."""
        if self._process is None:
            self.restart()

    def restart(self) -> None:
        """End it as Ctrl-C does, if it runs, and start it; returns when it is ready."""
        self._stop()
        with (self._folder / "serve.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["make", "serve", f"PORT={self._port}"], cwd=self._folder, env=self._environment,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        until(self._is_ready, 120)

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "serve.log").read_text()[-4000:]
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/v2/health/ready", timeout=10) as response:
                return response.status == 200
        except (URLError, ConnectionError, TimeoutError):
            return False

    def _stop(self) -> None:
        if self._process:
            os.killpg(self._process.pid, signal.SIGINT)
            self._process.wait(60)
            self._process = None
