"""The model repository, ``<name>/<version>/model.onnx``: loaded, looked up, renewed while requests go on.

Readers take no lock: what is served is a dict that is replaced, never changed. A request keeps the model it started on.
"""

import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from service.errors import Invalid, NotFound, NotReady
from service.index import State, index
from service.model import REFUSALS, Model
from service.provider import Provider, ProviderUnavailable, choose
from service.settings import Settings
from service.shelf import Versions, fingerprint, found, versions_of
from service.terms import Terms, open_model
from service.version_policy import VersionPolicy

log = logging.getLogger("heed")
T = TypeVar("T")


class Repository:
    """The models of one folder."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.model_repository
        self._settings = settings
        self._threads = settings.threads
        self.terms = Terms(VersionPolicy.parse(settings.versions), settings.max_batch_size, settings.batch_models)
        self._own_terms: dict[str, Terms] = {}
        self._models: dict[str, dict[int, Model]] = {}
        self._failed: dict[str, dict[int, str]] = {}
        self.load_failures = 0  # since the start
        self._seen: dict[Path, object] = {}  # fingerprints of the version folders that poll() has tried
        self._changing: dict[str, str] = {}
        self._change = threading.RLock()  # one change at a time
        self.provider: Provider | None = None
        self.ready = threading.Event()
        self.is_beyond_help = False  # the device is lost, and this process is to end
        self._lost: list[dict[str, dict[int, Model]]] = []  # kept: to end a session on a lost device may never end

    def open(self) -> Provider:
        """Settle on the provider, and answer it.

        Raises:
            ProviderUnavailable: the provider asked for does not work here.
        """
        asked = self._settings
        provider = choose(asked.provider, asked.device_id, asked.device_memory_bytes, asked.cuda_graphs)
        provider.when_lost = self._lose
        self.provider = provider
        log.info("provider %s (%s)", provider.name, provider.reason)
        return provider

    def load(self) -> None:
        """Load every model and run it once; then ``ready`` is set. One that fails is named, and harms no other."""
        assert self.provider is not None, "open() comes first"
        start = time.perf_counter()
        self.poll()
        if not self._models and not self._failed:
            log.warning("no models in %s; `heed export` writes the built-in blocks there", self._folder.absolute())
        log.info("ready: %s (%.1f s)", ", ".join(self._models) or "no models", time.perf_counter() - start)
        self._set_ready()

    def reopen(self) -> Provider:
        """After the device was lost: settle on a provider again, open the models anew on it, and answer it.

        Where the provider asked for cannot be had any more, the service is beyond help.

        Raises:
            OSError: the folder cannot be read; nothing is changed.
        """
        assert self.provider is not None, "open() comes first"
        log.warning("the models are opened anew, as %s was lost", self.provider.name)
        why, shelves = self.provider.lost, found(self._folder)
        try:
            self.open()
        except ProviderUnavailable as error:
            log.critical("%s", error)
            self.is_beyond_help = True
            return self.provider
        if self.provider.name == "cpu":
            self.provider.reason = f"CUDA was lost: {why}; then: {self.provider.reason}"
        with self._change:
            names = [*self._models, *self._failed]
            self._lost.append(self._models)
            self._models, self._failed, self._seen = {}, {}, {}
            for name in names:
                self._follow(name, shelves.get(name, {}))
        log.info("open again: %s", ", ".join(self._models) or "no models")
        self._set_ready()
        return self.provider

    def _set_ready(self) -> None:
        assert self.provider is not None, "open() comes first"
        if not self.provider.lost:
            self.ready.set()

    def _lose(self) -> None:
        """Serve nothing until the models are open again, if ever."""
        self.ready.clear()
        self.is_beyond_help = self._settings.on_cuda_failure == "exit"

    def poll(self) -> None:
        """Follow the folder: load what is new or changed, drop what is gone. What fails leaves the old in place."""
        with self._change:
            shelves = found(self._folder)
            for name in [name for name in (*self._models, *self._failed) if name not in shelves]:
                self._drop(name)
            for name, shelf in shelves.items():
                self._follow(name, shelf)

    def load_model(self, name: str, terms: Terms | None = None, shelf: Versions | None = None) -> None:
        """Load a model anew, from ``shelf`` if given, and serve it once all its versions are ready.

        Raises:
            NotFound, Invalid: it is not there, or fails to load; the old one is still served.
        """
        with self._change, self._state(name, "LOADING"):
            shelf = versions_of(self._folder, name) if shelf is None else shelf
            terms = terms or self.terms
            chosen = terms.policy.choose(shelf)
            if not chosen:
                what = "has no version its version policy serves" if shelf else "failed to poll from model repository"
                raise NotFound(f"failed to load '{name}', {what}")
            try:
                models = {version: self._open(shelf[version], terms) for version in chosen}
            except Exception as error:
                reason = _reason(error, shelf)
                log.error("model %s failed to load: %s", name, error)
                self.load_failures += 1
                if name not in self._models:
                    self._failed = {**self._failed, name: dict.fromkeys(chosen, reason)}
                raise Invalid(f"failed to load '{name}', {reason}") from None
            self._own_terms[name] = terms
            self._serve(name, models, {})

    def give_back(self) -> None:
        """Give the system the memory that past runs needed; it takes a block to do so."""
        assert self.provider is not None, "open() comes first"
        block = next(iter(self.blocks.values()), None)
        if block and self.provider.name == "cpu":
            block.give_back()

    def unload_model(self, name: str) -> None:
        """Serve it no more; requests in flight finish on it.

        Raises:
            NotFound: there is none.
        """
        with self._change:
            if name not in self._models and name not in self._failed:
                raise self._unknown(name, None)
            with self._state(name, "UNLOADING"):
                self._drop(name)

    def model(self, name: str, version: int | None = None) -> Model:
        """A model, in its highest version served if none is named.

        Raises:
            NotReady: models are still being loaded, or this version is, or failed to.
            NotFound: there is none.
        """
        self.must_be_ready()
        versions = self._models.get(name, {})
        if not versions or (version is not None and version not in versions):
            raise self._unknown(name, version)
        return versions[next(reversed(versions)) if version is None else version]

    def block(self, name: str) -> Model:
        """The attention block called ``name``: a model that describes itself.

        Raises:
            NotReady: models are still being loaded, or this one failed to load.
            NotFound: there is none.
        """
        self.must_be_ready()
        versions = self._models.get(name)
        if versions is None and name in self._failed:
            raise NotReady(f"{name} failed to load; the server's log says why")
        model = versions[next(reversed(versions))] if versions else None
        if model is None or model.card is None:
            raise NotFound(f"unknown block {name!r}; there are {', '.join(self.blocks) or 'none'}")
        return model

    def must_be_ready(self) -> None:
        """Raises NotReady while models are being loaded, and when their device is lost."""
        if not self.ready.is_set():
            lost = self.provider is not None and self.provider.lost
            raise NotReady(f"Server not ready: {'its device is lost' if lost else 'models are being loaded'}")

    @property
    def models(self) -> dict[str, dict[int, Model]]:
        """Name -> version -> model, lowest version first, of all that is served."""
        return self._models

    @property
    def failed(self) -> dict[str, dict[int, str]]:
        """Name -> version -> why it could not be loaded."""
        return self._failed

    @property
    def blocks(self) -> dict[str, Model]:
        """The models that are attention blocks, those that describe themselves, in their highest version."""
        highest = {name: versions[next(reversed(versions))] for name, versions in self._models.items()}
        return {name: model for name, model in highest.items() if model.card}

    def terms_of(self, name: str) -> Terms:
        """On which terms a model is served."""
        return self._own_terms.get(name, self.terms)

    def index(self) -> list[State]:
        """Every model there is, loaded or not."""
        names = {*found(self._folder), *self._models, *self._failed}
        return index(names, self._models, self._failed, self._changing)

    def _follow(self, name: str, shelf: Versions) -> None:
        terms = self.terms_of(name)
        chosen = terms.policy.choose(shelf)
        old = self._models.get(name, {})
        for folder in [folder for version, folder in shelf.items() if version not in chosen]:
            self._seen.pop(folder, None)  # it may be chosen again, and then has to be loaded again
        prints = {version: fingerprint(shelf[version]) for version in chosen}
        if list(old) == chosen and all(self._seen.get(shelf[version]) == prints[version] for version in chosen):
            return
        models: dict[int, Model] = {}
        failed: dict[int, str] = {}
        for version in chosen:
            folder = shelf[version]
            if self._seen.get(folder) == prints[version]:  # tried before, for better or worse
                if version in old:
                    models[version] = old[version]
                elif version in self._failed.get(name, {}):
                    failed[version] = self._failed[name][version]
                continue
            self._seen[folder] = prints[version]
            try:
                with self._state(name, "LOADING"):
                    models[version] = self._open(folder, terms)
            except Exception as error:
                log.error("model %s from %s cannot be served: %s", name, folder, error)
                self.load_failures += 1
                failed[version] = _reason(error, shelf)
                if version in old:
                    models[version] = old[version]
        self._serve(name, models or old, failed)

    def _open(self, folder: Path, terms: Terms) -> Model:
        assert self.provider is not None, "open() comes first"
        try:
            return open_model(folder, self.provider, self._threads, terms)
        except REFUSALS as error:
            raise self.provider.meaning(error) or error from None

    def _serve(self, name: str, models: dict[int, Model], failed: dict[int, str]) -> None:
        self._models = dict(sorted({**self._models, name: models}.items())) if models else _without(self._models, name)
        self._failed = {**self._failed, name: failed} if failed else _without(self._failed, name)

    def _drop(self, name: str) -> None:
        self._seen = {folder: seen for folder, seen in self._seen.items() if folder.parent.name != name}
        self._own_terms.pop(name, None)
        self._serve(name, {}, {})

    @contextmanager
    def _state(self, name: str, state: str) -> Iterator[None]:
        self._changing[name] = state
        try:
            yield
        finally:
            del self._changing[name]

    def _unknown(self, name: str, version: int | None) -> NotFound | NotReady:
        start = f"Request for unknown model: '{name}'"
        if version is not None and (name in self._changing or version in self._failed.get(name, {})):
            return NotReady(f"{start} version {version} is not at ready state")
        if name in self._models:
            return NotFound(f"{start} version {version} is not found")
        if name in self._failed or name in self._changing:
            return NotFound(f"{start} has no available versions")
        return NotFound(f"{start} is not found")


def _without(of: dict[str, T], name: str) -> dict[str, T]:
    return {other: value for other, value in of.items() if other != name}


def _reason(error: Exception, shelf: Versions) -> str:
    """What went wrong, without where on this machine the files lie."""
    reason = str(error)
    for version, folder in shelf.items():
        reason = reason.replace(str(folder), f"version {version}").replace(str(folder.absolute()), f"version {version}")
    return re.sub(r'"/[^"]*"', "a path outside", reason)
