"""The index of a repository: every model there is, loaded or not, and how each version is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class State:
    """One line; a model that is not loaded has only its name."""

    name: str
    version: int | None = None
    state: str | None = None
    reason: str | None = None


def index(
    names: Iterable[str],
    loaded: Mapping[str, Iterable[int]],
    failed: Mapping[str, Mapping[int, str]],
    changing: Mapping[str, str],
) -> list[State]:
    """The lines of ``names``: versions loaded, versions that failed and why, models on their way in or out."""
    states: list[State] = []
    for name in sorted(names):
        lines = [State(name, version, changing.get(name, "READY")) for version in loaded.get(name, ())]
        lines += [State(name, version, "UNAVAILABLE", reason) for version, reason in failed.get(name, {}).items()]
        states += lines or [State(name, state=changing.get(name))]
    return states
