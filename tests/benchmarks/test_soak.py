"""The soak in short: the same parts, for seconds, on a machine that may be busy."""

import pytest

from benchmarks.soak.__main__ import PARTS, main
from benchmarks.soak.beside import SECONDS as LONG
from benchmarks.soak.beside import beside
from benchmarks.soak.check import Check
from benchmarks.soak.overload import SECONDS, overload


def broken(checks) -> list[Check]:
    return [check for check in checks if not check.held and not check.quiet]


def test_overload(repository):
    assert not broken(overload(repository, 2 / SECONDS))


def test_beside_a_long_run(repository):
    assert not broken(beside(repository, 2 / LONG))


def test_unknown_parts_are_told(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["overloads"])
    assert f"unknown part 'overloads'; there are {', '.join(PARTS)}" in capsys.readouterr().err
