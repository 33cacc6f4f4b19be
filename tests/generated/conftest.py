"""A server with every operation, its document, and the generators of clients."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest

from tests.support.environments import environment
from tests.support.operations import Call, calls
from tests.support.server import serving

GENERATORS = ("openapi-python-client==0.29.1", "openapi-generator-cli==7.26.0", "openapi-spec-validator==0.9.0")


@pytest.fixture(scope="session")
def generators(request) -> Path:
    """The folder of their programs, in an environment of their own: they need typer below 0.28."""
    return environment(request.config, *GENERATORS)


@pytest.fixture(scope="session")
def all_operations(repository, generating, tmp_path_factory) -> Path:
    """A repository of every block, and a language model that generates."""
    folder = tmp_path_factory.mktemp("repository")
    shutil.copytree(repository, folder, dirs_exist_ok=True)
    shutil.copytree(generating / "models", folder, dirs_exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def api(all_operations) -> Iterator[httpx.Client]:
    """Of a server of its own, as one call unloads a block."""
    with serving(all_operations, "--model-control-mode", "explicit") as client:
        yield client


@pytest.fixture
def document(api, tmp_path) -> Path:
    """The file of the document."""
    path = tmp_path / "openapi.json"
    path.write_bytes(api.get("/openapi.json").content)
    return path


@pytest.fixture
def every_call(document) -> list[Call]:
    return calls(json.loads(document.read_text()))


@pytest.fixture
def calls_file(every_call, tmp_path) -> Path:
    """The calls as JSON, for programs."""
    path = tmp_path / "calls.json"
    path.write_text(json.dumps([asdict(call) for call in every_call]))
    return path
