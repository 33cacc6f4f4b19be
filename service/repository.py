"""The model repository, ``<name>/<version>/model.onnx``: found on disk, loaded, looked up."""

import logging
import threading
import time
from pathlib import Path

from service.errors import NotFound, NotReady
from service.model import CANONICAL, Model
from service.provider import Provider, choose
from service.settings import Settings

log = logging.getLogger("heed")


class Repository:
    """The models of one folder; each name's highest version is served."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.model_repository
        self._wanted = settings.provider
        self._threads = settings.threads
        self._models: dict[str, Model] = {}
        self._failed: dict[str, str] = {}
        self.provider: Provider | None = None
        self.ready = threading.Event()

    def open(self) -> None:
        """Settle on the provider.

        Raises:
            ProviderUnavailable: the provider asked for does not work here.
        """
        first = next(iter(self._found().values()), None)
        self.provider = choose(self._wanted, first / CANONICAL if first else None)
        log.info("provider %s (%s)", self.provider.name, self.provider.reason)

    def load(self) -> None:
        """Load every model and run it once; then ``ready`` is set. One that fails is named, and harms no other."""
        assert self.provider is not None, "open() comes first"
        start = time.perf_counter()
        found = self._found()
        for name, folder in found.items():
            try:
                model = Model(folder, self.provider, self._threads)
                model.warm()
            except Exception as error:
                self._failed[name] = str(error)
                log.error("model %s from %s cannot be served: %s", name, folder, error)
            else:
                self._models[name] = model
        if not found:
            log.warning("no models in %s; `heed export` writes the built-in blocks there", self._folder.absolute())
        log.info("ready: %s (%.1f s)", ", ".join(self._models) or "no models", time.perf_counter() - start)
        self.ready.set()

    def block(self, name: str) -> Model:
        """The attention block called ``name``: a model that describes itself.

        Raises:
            NotReady: models are still being loaded, or this one failed to load.
            NotFound: there is none.
        """
        self.must_be_ready()
        if name in self._failed:
            raise NotReady(f"{name} failed to load; the server's log says why")
        blocks = self.blocks
        if name not in blocks:
            raise NotFound(f"unknown block {name!r}; there are {', '.join(blocks) or 'none'}")
        return blocks[name]

    def must_be_ready(self) -> None:
        """Raises NotReady while models are being loaded."""
        if not self.ready.is_set():
            raise NotReady("models are being loaded")

    @property
    def blocks(self) -> dict[str, Model]:
        """The models that are attention blocks: those that describe themselves."""
        return {name: model for name, model in self._models.items() if model.card}

    def _found(self) -> dict[str, Path]:
        """Name -> the folder of its highest version that holds a model."""
        found: dict[str, Path] = {}
        for file in sorted(self._folder.glob(f"*/*/{CANONICAL}"), key=_version):
            if _version(file):
                found[file.parent.parent.name] = file.parent
        return dict(sorted(found.items()))


def _version(file: Path) -> int:
    """The version a model file lies in; 0 where the folder's name is no version."""
    name = file.parent.name
    return int(name) if name.isascii() and name.isdecimal() else 0
