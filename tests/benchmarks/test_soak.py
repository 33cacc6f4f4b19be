"""The soak in short: the same parts, for seconds, on a machine that may be busy."""

import pytest

from benchmarks.soak.__main__ import PARTS, main
from benchmarks.soak.attack import attack
from benchmarks.soak.beside import SECONDS as LONG
from benchmarks.soak.beside import beside
from benchmarks.soak.check import Check
from benchmarks.soak.overload import SECONDS, overload

pytestmark = pytest.mark.extended


def broken(checks) -> list[Check]:
    return [check for check in checks if not check.passed and not check.needs_idle_machine]


def test_overload(two_blocks):
    assert not broken(overload(two_blocks, 2 / SECONDS))


def test_beside_a_long_run(two_blocks):
    assert not broken(beside(two_blocks, 2 / LONG))


def test_attack(repository):
    assert not broken(attack(repository, 0.1))


def test_unknown_parts_are_told(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["overloads"])
    assert f"unknown part 'overloads'; there are {', '.join(PARTS)}" in capsys.readouterr().err
