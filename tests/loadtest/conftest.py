"""Small ASGI servers in this process, each of which misbehaves in a way of its own, and a load test of the real one."""

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest

from loadtest.__main__ import main
from tests.support.app import app_server

SMALL = ["--size", "m=4", "--size", "n=5", "--size", "d_k=8", "--size", "d_v=8"]
QUICK = ["--seconds", "0.3", "--window", "0.05", "--max-warmup", "0.2"]


@pytest.fixture
def served() -> Iterator[Callable[..., str]]:
    """Serves an app until the test ends; answers its URL."""
    with ExitStack() as running:
        yield lambda app, tls=None: running.enter_context(app_server(app, tls))


@pytest.fixture
def scenario(tmp_path) -> str:
    """A file with one request that any server understands."""
    (tmp_path / "body.json").write_text("{}")
    (tmp_path / "any.toml").write_text('[[request]]\npath = "/any"\nbody = "body.json"\n')
    return str(tmp_path / "any.toml")


@pytest.fixture
def measure(tmp_path) -> Callable[..., dict]:
    """Runs the command, which is to end with ``status``; answers the document that it wrote."""

    def run(*flags: object, status: int = 0) -> dict:
        out = tmp_path / "out.json"
        assert main([*QUICK, *map(str, flags), "--json", str(out)]) == status
        return json.loads(out.read_text())

    return run


@pytest.fixture(scope="session")
def url(shared_server, two_blocks) -> str:
    """The address of a real server; of all blocks its metrics would be long, and take long to read."""
    return shared_server(two_blocks).url


def junit_cases(file: Path) -> dict[str, tuple[str, str] | None]:
    """By name: the kind of problem and its text, or None."""
    return {
        case.get("name"): next(((child.tag, child.get("message")) for child in case if child.tag != "system-out"), None)
        for case in ElementTree.parse(file).getroot().iter("testcase")
    }


@dataclass
class Sweep:
    """All that one run of the command wrote: three levels of load on the real server."""

    flags: list[str]
    printed: str
    folder: Path

    @property
    def document(self) -> dict:
        return json.loads((self.folder / "out.json").read_text())

    @property
    def rows(self) -> list[dict[str, str]]:
        return list(csv.DictReader((self.folder / "out.csv").read_text().splitlines()))


@pytest.fixture(scope="session")
def sweep(url, tmp_path_factory) -> Sweep:
    folder = tmp_path_factory.mktemp("sweep")
    files = {"--json": "out.json", "--csv": "out.csv", "--junit": "junit.xml", "--report": "report.html"}
    flags = [
        *SMALL, *QUICK, "-c", "1,2", "--soak", "0.6", "-H", "X-Api-Key: secret", "--api-key", "hidden",
        "--fail-if", "p50>1us", "--fail-if", "p50>60s", "--fail-if", "rate<1/s",
        *(part for flag, name in files.items() for part in (flag, str(folder / name))),
    ]  # fmt: skip
    with redirect_stdout(StringIO()) as printed:
        assert main([url, *flags]) == 1
    return Sweep(flags, printed.getvalue(), folder)
