"""An application in this process, over a folder of models."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from service.app import create_app
from service.feature import Feature
from service.repository.repository import Repository
from service.settings import Settings


@contextmanager
def running(folder: Path, features: Sequence[Feature] | None = None, **settings: Any) -> Iterator[TestClient]:
    """A client of an application whose models have been tried."""
    app = create_app(Settings(model_repository=folder, provider="cpu", **settings), features=features)
    with TestClient(app) as client:
        assert app.repository.ready.wait(60)
        yield client


def opened(folder: Path, **settings: Any) -> Repository:
    """A repository without an application, once it has loaded its models."""
    repository = Repository(Settings(model_repository=folder, provider="cpu", **settings).sized())
    repository.open()
    repository.load()
    return repository
