"""The mutants that `make mutants` draws, and the tests that it chooses for each."""

from pathlib import Path

import pytest

SOURCE = """
def area(width: int | None, height: int) -> int | None:
    if width is not None and height > 0:
        return width * height
    return None
"""
TESTS = """
import pytest
from service.area import area

def test_fast():
    assert area(2, 3) == 6

@pytest.mark.extended
def test_extended():
    assert area(None, 1) is None
"""
pytestmark = pytest.mark.extended


@pytest.fixture
def checkout(tmp_path) -> Path:
    pytest.importorskip("cosmic_ray", reason="no cosmic-ray here: make test-all installs it")
    (tmp_path / "shapes").mkdir()
    (tmp_path / "shapes" / "area.py").write_text(SOURCE)
    return tmp_path


def mutated_lines(checkout: Path, count: int, seed: int = 1) -> list[str]:
    from scripts.mutants.drawing import draw

    source = (checkout / "shapes" / "area.py").read_text()
    codes = [mutant.code(source) for mutant in draw(checkout, ["shapes"], count, seed)]
    return [
        next(new for old, new in zip(source.splitlines(), code.splitlines(), strict=False) if old != new)
        for code in codes
    ]


def test_each_mutant_changes_another_place_and_no_annotation(checkout):
    lines = mutated_lines(checkout, 100)
    assert len(lines) == len(set(lines)) > 3
    assert not any(line.startswith("def") for line in lines)


def test_a_change_elsewhere_draws_the_same_mutants(checkout):
    before = mutated_lines(checkout, 3)
    (checkout / "shapes" / "area.py").write_text('"""Shapes."""\n' + SOURCE)
    assert mutated_lines(checkout, 3) == before


def test_another_seed_draws_others(checkout):
    assert any(mutated_lines(checkout, 1, seed) != mutated_lines(checkout, 1) for seed in range(2, 9))


def test_tests_beside_the_mutant_come_first_and_the_budget_bounds_the_others(checkout):
    from scripts.mutants.__main__ import BUDGET_S, chosen_tests
    from scripts.mutants.coverage_by_test import FAST, TestFile
    from scripts.mutants.drawing import Mutant

    names = ("shapes/test_area", "shapes/test_volume", "test_a", "test_b")
    area, volume, quick, slow = (TestFile(f"tests/{name}.py", FAST) for name in names)
    mutant = Mutant(Path("shapes/area.py"), 3, "core/AddNot", 0)
    seconds = {area: 20.0, volume: 30.0, quick: 1.0, slow: float(BUDGET_S)}
    assert chosen_tests([slow, quick, volume, area], mutant, seconds) == [area, volume, quick]
    assert chosen_tests([area, quick, volume], mutant, seconds | {volume: 2.0 * BUDGET_S}) == [area, volume]


def test_the_shares_that_make_test_runs_are_smaller(tmp_path):
    from scripts.mutants.coverage_by_test import EXTENDED, FAST, FOLDERS, Measurement

    for name in FOLDERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "area.py").write_text(SOURCE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_area.py").write_text(TESTS)
    measurement = Measurement(tmp_path, tmp_path / "coverage")
    assert not measurement.run(lambda: None)
    (_, *both), *others = measurement.shares(FAST, EXTENDED)
    (_, *fast), *_ = measurement.shares(FAST)
    assert both == [1, 1]
    assert fast == [3 / 4, 1 / 2]
    assert {share for _, *shares in others for share in shares} == {0}


def test_outcomes_are_kept_for_a_run_that_goes_on(tmp_path):
    pytest.importorskip("cosmic_ray", reason="no cosmic-ray here: make test-all installs it")
    from scripts.mutants.__main__ import KEPT, Outcome, kept_outcomes, outcome_line
    from scripts.mutants.coverage_by_test import EXTENDED
    from scripts.mutants.drawing import Mutant

    assert not kept_outcomes(tmp_path)
    mutants = [Mutant(Path("shapes/area.py"), line, "core/AddNot", 0) for line in (3, 4)]
    outcomes = {mutants[0]: Outcome(mutants[0], EXTENDED, 2), mutants[1]: Outcome(mutants[1], None, 1)}
    (tmp_path / KEPT).write_text("".join(map(outcome_line, outcomes.values())))
    assert kept_outcomes(tmp_path) == outcomes
