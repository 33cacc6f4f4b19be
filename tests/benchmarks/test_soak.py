"""The soak in short: the same parts, for seconds, on a machine that may be busy."""

import pytest

from benchmarks.soak.__main__ import PARTS
from benchmarks.soak.beside import SECONDS as LONG
from benchmarks.soak.beside import beside
from benchmarks.soak.overload import SECONDS, overload


def held(checks) -> None:
    assert not [check for check in checks if not check.held]


def test_overload(repository):
    answered, p99, memory, probes, sound = overload(repository, 3 / SECONDS)
    held([answered, memory, probes, sound])
    assert "p99" in p99.must  # which is measured for a minute, on a machine that is not busy


def test_beside_a_long_run(repository):
    held(beside(repository, 2 / LONG))


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_told(part):
    assert PARTS[part]
