"""The index of a repository: every model, loaded or not, and the state of each version."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from service.repository.incomplete import NO_VERSION, incomplete
from service.repository.versions import scan


@dataclass(frozen=True)
class State:
    """One line of the index; for a model that is not loaded it has only the name."""

    name: str
    version: int | None = None
    state: str | None = None
    reason: str | None = None


def index(
    folder: Path,
    loaded: Mapping[str, Iterable[int]],
    failed: Mapping[str, Mapping[int, str]],
    changing: Mapping[str, str],
) -> list[State]:
    """The lines of the folder's models: loaded versions, failed ones with the reason, models that are changing.

    A reason of version 0 is about the whole model, before it is loading.
    """
    known = {*scan(folder), *loaded, *failed}
    broken = incomplete(folder, known)
    failed = {**failed, **{name: {NO_VERSION: reason} for name, reason in broken.items()}}
    states: list[State] = []
    for name in sorted(known | broken.keys()):
        lines = [State(name, version, changing.get(name, "READY")) for version in loaded.get(name, ())]
        reasons = {version: of for version, of in failed.get(name, {}).items() if version or name not in changing}
        lines += [State(name, version or None, "UNAVAILABLE", reason) for version, reason in reasons.items()]
        states += lines or [State(name, state=changing.get(name))]
    return states
