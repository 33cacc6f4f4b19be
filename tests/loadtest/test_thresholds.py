"""Conditions of failure."""

import pytest

from loadtest.thresholds import parse, violations

RESULT = {"level": "8 connections", "p99": 12.0, "rate": 900.0, "failed": 0.002, "max": None, "steady": False,
          "bottleneck": False, "notes": ["not steady: x"]}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("p99>50ms", None),
        ("p99>10ms", "12"),
        ("p99 > 11999us", "12"),
        ("p99>0.02s", None),
        ("rate<1000/s", "900"),
        ("failed>0.1%", "0.002"),
        ("failed>0.2%", None),
        ("max>1s", "nothing was measured"),
        ("unsteady", "not steady: x"),
        ("bottleneck", None),
        ("ratio<0.95", "0.9"),
    ],
)
def test_broken(text, said):
    found = violations([parse(text)], [RESULT], {"8 connections": {"rate": {"median": 0.9}}})
    assert found == ([f"8 connections: {text}: {said}"] if said else [])


@pytest.mark.parametrize("text", ["p99>50", "p98>1ms", "rate>5ms", "p99=1ms", "", "failed>1", "ratio<1%", "p99>-1ms"])
def test_mistakes(text):
    with pytest.raises(ValueError, match="expected something like"):
        parse(text)
