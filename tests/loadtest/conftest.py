"""Load on small ASGI servers in this process, each of which misbehaves in a way of its own, or on a real one."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from html import unescape
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
    """Runs the command, which is to end with ``status``; returns the document that it wrote, or None."""

    def run(*flags: object, status: int = 0) -> dict:
        out = tmp_path / "out.json"
        assert main([*QUICK, *map(str, flags), "--json", str(out)]) == status
        return json.loads(out.read_text() or "null")

    return run


@pytest.fixture
def load(measure, scenario) -> Callable[..., dict]:
    """The same, with requests that any server understands."""
    return lambda *flags, status=0: measure("--scenario", scenario, *flags, status=status)


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


def body_of(page: Path) -> str:
    """The body of a report, which loads nothing."""
    html = page.read_text()
    body = html[html.index("<body>") :]
    assert not re.search(r"""(src|href)=["']?http""", body)
    return unescape(body)
