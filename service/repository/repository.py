"""The model repository, ``<name>/<version>/model.onnx``: models are loaded and replaced while requests are served.

Readers need no lock: the dict of served models is replaced, never changed. A request keeps the model it started with.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from service.base.aliases import name_hint
from service.base.errors import Invalid, NotEnoughMemory, NotFound, NotReady
from service.model.loader import load_version
from service.model.model import Model
from service.ort.failures import RUN_ERRORS
from service.ort.provider import Provider, choose
from service.repository.changes import NOBODY, POLL, START, Requester, log_changes
from service.repository.incomplete import NO_VERSION, incomplete
from service.repository.index import State, index
from service.repository.options import ServingOptions
from service.repository.triton_config import CONFIG, fields
from service.repository.versions import VersionPolicy, Versions, fingerprint, misnamed, scan, survey
from service.settings import Settings

log = logging.getLogger("heed")
T = TypeVar("T")
MAX_FAILURES = 100  # remembered of models that are not in the folder
Failures = dict[str, dict[int, str]]  # name -> version, or NO_VERSION -> why it cannot be served


class Repository:
    """The models of one folder.

    ``on_load`` are called with the folder of a version and its model before it is served; an error fails the load.
    """

    def __init__(self, settings: Settings, on_load: Sequence[Callable[[Path, Model], None]] = ()) -> None:
        self._on_load = on_load
        self._folder = settings.model_repository
        self._settings = settings
        self.options = ServingOptions(
            VersionPolicy.parse(settings.versions),
            settings.max_batch_size,
            settings.batch_models,
            settings.allow_timeout_override,
        )
        self._own_options: dict[str, ServingOptions] = {}
        self._sent: set[str] = set()  # models whose files came with a load request, not from the folder
        self.models: dict[str, dict[int, Model]] = {}  # all served ones, by name and version, lowest version first
        self.failed: Failures = {}
        self.load_failures = 0  # since the start
        # Fingerprints of the version folders that poll() has loaded or failed to load.
        self._seen: dict[Path, object] = {}
        self._unseen: dict[str, str] = {}  # models that the last poll could not read, and why
        self._incomplete: set[str] = set()  # models of which the last poll saw no version to serve
        self._changing: dict[str, str] = {}
        self._change = threading.RLock()  # one change at a time
        self.provider: Provider | None = None
        self.load_has_ended = False  # every model was tried, or the attempt failed
        self.ready = threading.Event()  # every model was tried, and the device works: requests are accepted
        # True once the models were loaded that the setting ``ready`` requires; later failures do not change it.
        self.is_complete = False
        self.unrecoverable = False  # the device has failed, and this process has to end

    def open(self) -> Provider:
        """Choose the provider.

        Raises:
            ProviderUnavailable: the provider that the settings require does not work.
        """
        settings = self._settings
        self.provider = choose(settings.provider, settings.device_memory_bytes, settings.memory_budget_bytes // 2)
        self.provider.on_lost = self._lose
        log.info("provider %s (%s)", self.provider.name, self.provider.reason)
        return self.provider

    def load(self) -> None:
        """Load every model and run it once, then set ``ready``. A model that fails is logged; the others are served."""
        try:
            self._load()
        finally:
            self.load_has_ended = True

    def _load(self) -> None:
        assert self.provider is not None, "open() comes first"
        start = time.perf_counter()
        for version in misnamed(self._folder):
            log.warning("%s is not a version: expected a number without leading zeros", version)
        self.poll(START)
        if not self.models and not self.failed:
            log.warning("no models in %s; `heed export` writes the built-in blocks there", self._folder.absolute())
        loaded, seconds = ", ".join(self.models) or "no models", time.perf_counter() - start
        if self.is_complete:
            log.info("ready: %s (%.1f s)", loaded, seconds)
        else:
            reason = f"{', '.join(self.failed)} failed to load from" if self.failed else "there are no models in"
            where, setting = self._folder.absolute(), self._settings.ready_when
            log.error(
                "not ready: %s %s (HEED_READY_WHEN=%s); loaded %s (%.1f s)", reason, where, setting, loaded, seconds
            )
        if not self.provider.lost_reason:
            self.ready.set()

    def _check_complete(self) -> None:
        """Set ``is_complete`` if all required models are loaded; models that a client failed to load do not count."""
        wanted = self._settings.required_models
        polled = {folder.parent.name for folder in self._seen} | self._incomplete
        if wanted == "live" or (self.models and (wanted == "any" or polled.isdisjoint(self.failed))):
            self.is_complete = True

    def _lose(self) -> None:
        """Accept no more requests, and let the server end this process."""
        self.ready.clear()
        self.is_complete = False
        self.unrecoverable = True

    def poll(self, requester: Requester = POLL) -> None:
        """Load new and changed versions from the folder, and unload removed ones. Where a load fails, the old version
        is still served.

        Models that cannot be read, such as those of an unmounted volume, were not removed, and stay loaded.
        """
        with self._change:
            scanned, unseen = survey(self._folder, self.models)
            self._report(unseen)
            if "" not in unseen:
                before = self.failed
                for name in [*self.models, *self.failed]:
                    if name not in scanned and name not in unseen:
                        self._drop(name, requester)
                for name in [name for name in scanned if name not in unseen]:
                    self._follow(name, scanned[name], requester)
                self._mark_incomplete(scanned, incomplete(self._folder, {*scanned, *unseen}), before)
            self._check_complete()

    def load_model(
        self,
        name: str,
        options: ServingOptions | None = None,
        versions: Versions | None = None,
        requester: Requester = NOBODY,
    ) -> None:
        """Load a model, from ``versions`` if given, and serve it once all its versions are ready.

        The log names ``requester``.

        Without ``options`` it keeps those of its last load, unless that load came with files.

        Raises:
            NotFound, Invalid: there is no such model, or it fails to load; the old one is still served.
            NotEnoughMemory: there is too little memory to load it; the old one is still served.
        """
        with self._change, self._state(name, "LOADING"):
            sent = versions is not None
            versions = scan(self._folder).get(name, {}) if versions is None else versions  # no path has the name
            options = options or (self.options if name in self._sent else self.options_for(name))
            chosen = options.policy.choose(versions)
            if not chosen:
                reason = "no version matches its version policy" if versions else "failed to poll from model repository"
                raise NotFound(f"failed to load '{name}', {reason}")
            try:
                models = {version: self._open(versions[version], options) for version in chosen}
            except (MemoryError, NotEnoughMemory):
                raise NotEnoughMemory() from None
            except Exception as error:
                reason = _reason(error, versions)
                log.error("model %s failed to load: %s", name, error, extra=requester)
                self.load_failures += 1
                if name not in self.models:
                    self.failed = {**self._few_failures(), name: dict.fromkeys(chosen, reason)}
                raise Invalid(f"failed to load '{name}', {reason}") from None
            self._own_options[name] = options
            self._sent = self._sent | {name} if sent else self._sent - {name}
            self._log_config(name, versions)
            self._serve(name, models, {}, requester)
            self._check_complete()

    def _few_failures(self) -> Failures:
        """Those of the folder's models, and the latest of others: clients may send files of any name."""
        others = [name for name in self.failed if not (self._folder / name).exists()]
        forgotten = set(others[: max(0, len(others) - MAX_FAILURES + 1)])
        return {name: reasons for name, reasons in self.failed.items() if name not in forgotten}

    def unload_model(self, name: str, requester: Requester = NOBODY) -> None:
        """Stop serving it; requests in progress finish. As in Triton, a model that is not loaded is no error."""
        with self._change:
            if name not in self.models and name not in self.failed:
                log.info("model %s is not loaded, so there is nothing to unload", name, extra=requester)
                return
            with self._state(name, "UNLOADING"):
                self._drop(name, requester)
            self._check_complete()

    def model(self, name: str, version: int | None = None) -> Model:
        """A model; without ``version`` its highest version that is served.

        Raises:
            NotReady: models, or this version, are still loading, or this version failed to load.
            NotFound: there is no such model or version.
        """
        if not self.ready.is_set():
            self.must_be_ready()
        versions = self.models.get(name, {})
        if not versions or (version is not None and version not in versions):
            raise self._unknown(name, version)
        return versions[next(reversed(versions)) if version is None else version]

    def block(self, name: str, field: str | None = None, noun: str = "block") -> Model:
        """The attention block called ``name``, in ``field`` of a request: a model that describes itself.

        Errors call it ``noun``.

        Raises:
            NotReady: models are still loading, or this one failed to load.
            NotFound: there is no such block.
        """
        self.must_be_ready()
        versions = self.models.get(name)
        if versions is None and name in self.failed:
            raise NotReady(f"{name} failed to load; see the server's log")
        model = versions[next(reversed(versions))] if versions else None
        if model is None or model.spec is None:
            hint = name_hint(name, self.blocks)
            there = ", ".join(self.blocks) or "none"
            raise NotFound(f"unknown {noun} {name!r}{hint}{' Available' if hint else '; available'}: {there}", field)
        return model

    def must_be_ready(self) -> None:
        """Raises NotReady while models are loading, and when their device has failed."""
        if not self.ready.is_set():
            lost = self.provider is not None and self.provider.lost_reason
            raise NotReady(f"Server not ready: {'its device is lost' if lost else 'models are being loaded'}")

    @property
    def is_readable(self) -> bool:
        """Whether the last poll could read all served models."""
        return not self._unseen

    @property
    def blocks(self) -> dict[str, Model]:
        """The attention blocks among the models, in their highest version."""
        highest = {name: versions[next(reversed(versions))] for name, versions in self.models.items()}
        return {name: model for name, model in highest.items() if model.spec}

    def options_for(self, name: str) -> ServingOptions:
        """The options with which a model is served."""
        return self._own_options.get(name, self.options)

    def index(self) -> list[State]:
        """A line for every version of every model, loaded or not."""
        return index(self._folder, self.models, self.failed, self._changing)

    def _report(self, unseen: dict[str, str]) -> None:
        """Log models that can no longer be read, and those that can be read again."""
        for name, reason in unseen.items():
            if self._unseen.get(name) == reason:
                continue
            what = f"model {name}" if name else f"the model repository {self._folder.absolute()}"
            if self.models:
                log.warning("%s %s; models that were loaded from it are served until a restart", what, reason)
            elif not name:
                log.error("%s %s", what, reason)
        for name in self._unseen.keys() - unseen.keys():
            log.info("%s can be read again", f"model {name}" if name else "the model repository")
        self._unseen = unseen

    def _mark_incomplete(self, scanned: dict[str, dict[int, Path]], others: dict[str, str], before: Failures) -> None:
        """Keep why models of the folder have no version to serve; log it where it was not so ``before``."""
        reasons = dict(others)
        for name, versions in scanned.items():
            if not self.options_for(name).policy.choose(versions):
                there = ", ".join(map(str, versions))
                reasons[name] = f"HEED_VERSIONS={self._settings.versions} selects none of its versions: {there}"
        for name, reason in reasons.items():
            self._serve(name, self.models.get(name, {}), {NO_VERSION: reason})
            if before.get(name) != {NO_VERSION: reason}:
                log.warning("model %s from %s cannot be served: %s", name, (self._folder / name).absolute(), reason)
        self._incomplete = set(reasons)

    def _follow(self, name: str, versions: Versions, requester: Requester) -> None:
        options = self.options_for(name)
        chosen = options.policy.choose(versions)
        for folder in [folder for version, folder in versions.items() if version not in chosen]:
            self._seen.pop(folder, None)  # if it is chosen again, it has to be loaded again
        old, reasons = self.models.get(name, {}), self.failed.get(name, {})
        prints = {version: fingerprint(versions[version]) for version in chosen}
        changed = [version for version in chosen if self._seen.get(versions[version]) != prints[version]]
        if changed:
            self._log_config(name, versions)
        elif list(old) == chosen:
            return
        models = {version: old[version] for version in chosen if version in old}
        failed = {version: reasons[version] for version in chosen if version in reasons and version not in changed}
        for version in changed:
            folder = versions[version]
            self._seen[folder] = prints[version]
            try:
                with self._state(name, "LOADING"):
                    models[version] = self._open(folder, options)
            except Exception as error:
                log.error("model %s from %s cannot be served: %s", name, folder.absolute(), error, extra=requester)
                self.load_failures += 1
                failed[version] = _reason(error, versions)
        self._serve(name, dict(sorted(models.items())) or old, failed, requester)

    def _log_config(self, name: str, versions: Versions) -> None:
        """Log which fields of a model's Triton configuration are ignored, if it has one."""
        if ignored := fields(next(iter(versions.values())).parent / CONFIG):
            what = "model %s: its %s is ignored (%s); set these in the model file, the settings or a load request"
            log.warning(what, name, CONFIG, ", ".join(ignored))

    def _open(self, folder: Path, options: ServingOptions) -> Model:
        assert self.provider is not None, "open() comes first"
        start, threads = time.perf_counter(), self._settings.intra_op_threads
        try:
            model = load_version(
                folder, self.provider, threads, options.max_batch_size, options.batch_models, options.must_batch
            )
        except RUN_ERRORS as error:
            raise self.provider.translate(error) or error from None
        for complete in self._on_load:
            complete(folder, model)
        model.load_seconds = time.perf_counter() - start
        model.file_bytes = sum(size for _, _, size in fingerprint(folder))
        return model

    def _serve(
        self, name: str, models: dict[int, Model], failed: dict[int, str], requester: Requester = NOBODY
    ) -> None:
        log_changes(name, self.models.get(name, {}), models, requester)
        self.models = dict(sorted({**self.models, name: models}.items())) if models else _without(self.models, name)
        self.failed = {**self.failed, name: failed} if failed else _without(self.failed, name)

    def _drop(self, name: str, requester: Requester) -> None:
        self._seen = {folder: seen for folder, seen in self._seen.items() if folder.parent.name != name}
        self._own_options.pop(name, None)
        self._sent = self._sent - {name}
        self._serve(name, {}, {}, requester)

    @contextmanager
    def _state(self, name: str, state: str) -> Iterator[None]:
        self._changing[name] = state
        try:
            yield
        finally:
            del self._changing[name]

    def _unknown(self, name: str, version: int | None) -> NotFound | NotReady:
        start = f"Request for unknown model: '{name}'"
        if version is not None and (name in self._changing or version in self.failed.get(name, {})):
            return NotReady(f"{start} version {version} is not at ready state")
        if name in self.models:
            there = ", ".join(map(str, self.models[name]))
            return NotFound(f"{start} version {version} is not found; available: {there}")
        if name in self.failed or name in self._changing:
            return NotFound(f"{start} has no available versions")
        return NotFound(f"{start} is not found{name_hint(name, self.models)}")


def _without(entries: dict[str, T], name: str) -> dict[str, T]:
    return {other: value for other, value in entries.items() if other != name}


def _reason(error: Exception, versions: Versions) -> str:
    """The text of an error, without paths of this machine."""
    reason = str(error)
    for version, folder in versions.items():
        reason = reason.replace(str(folder), f"version {version}").replace(str(folder.absolute()), f"version {version}")
    reason = re.sub(r'"/[^"]*"', "a path outside", reason)
    external = re.search(r'External data path: "([^"]*)"', reason)
    if external and any((folder / external[1]).is_symlink() for folder in versions.values()):
        reason += (
            f"; {external[1]!r} is a symbolic link to a place outside the version's folder, which is not allowed: "
            "put the file itself there"
        )
    return reason
