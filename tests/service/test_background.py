"""Memory is freed while no request is answered, whenever the process has grown past what it needs."""

import asyncio
from types import SimpleNamespace

import pytest

from service import background
from service.base import machine

MIB = 1 << 20


@pytest.mark.parametrize(
    ("readings", "used", "frees"),
    [
        ([102, 104, 102], [], 0),
        ([300, 101, 101, 101], [], 1),
        ([300, 200, 200, 200], [], 1),  # what cannot be freed is not tried again,
        ([300, 200, 250, 101, 200, 101], [], 3),  # and is no limit for good
        ([300, 300], [200, 200], 0),  # what clients have yet to read, and their connections, are needed,
        ([300, 300, 101, 101], [200], 1),  # until they are gone
        ([400, 300, 300, 300, 101], [200, 200, 200], 2),
    ],
)
def test_memory_is_freed_until_the_process_has_what_it_needs(monkeypatch, readings, used, frees):
    """``readings`` are what the process uses at each look and after each free, of which ``used`` is reserved."""
    remaining, remaining_used, freed = iter(readings), iter(used), []

    def resident_bytes():
        reading = next(remaining, None)
        if reading is None:
            raise asyncio.CancelledError
        budget.used = next(remaining_used, 0) * MIB
        return reading * MIB

    monkeypatch.setattr(background, "IDLE_CHECK_S", 0)
    monkeypatch.setattr(background, "_load", lambda _repository: 100 * MIB)
    monkeypatch.setattr(background, "_free", freed.append)
    monkeypatch.setattr(machine, "resident_bytes", resident_bytes)
    budget, counts = SimpleNamespace(used=0), SimpleNamespace(in_flight=0)
    engine = SimpleNamespace(budget=budget, counts=counts, running=0)
    settings = SimpleNamespace(poll_seconds=None)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(background._load_and_follow(SimpleNamespace(provider="cpu"), engine, settings))
    assert len(freed) == frees
