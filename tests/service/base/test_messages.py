"""Sizes and names in errors."""

import pytest

from service.base.messages import closest, did_you_mean, seconds_words, size_words, sizes_words

MIB = 1 << 20
NAMES = ("query", "key", "is_causal", "scaled_dot_product")


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 bytes"),
        (99_999, "99,999 bytes"),
        (MIB // 2, "0.5 MiB"),
        (MIB, "1 MiB"),
        (3 * MIB // 2, "1.5 MiB"),
        (1023 * MIB, "1,023 MiB"),
        (5 << 29, "2.5 GiB"),
    ],
)
def test_sizes(size, words):
    assert size_words(size) == words


@pytest.mark.parametrize(("seconds", "words"), [(2.04e-5, "2e-05"), (0.31, "0.31"), (9.97, "10"), (4321, "4,321")])
def test_times(seconds, words):
    assert seconds_words(seconds) == words


@pytest.mark.parametrize("limit", [1, 1000, MIB, 128 * MIB, 3 << 30])
def test_a_size_past_its_limit_reads_so(limit):
    for more in (1, 10_000, MIB // 3, MIB, 1 << 32):
        size, most = sizes_words(limit + more, limit)
        assert size != most


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qeury", "query"),
        ("Is-Causal", "is_causal"),
        ("KEY", "key"),
        ("colour", None),
        ("query" * 100, None),
        ("", None),
    ],
)
def test_the_closest_name(name, expected):
    assert closest(name, NAMES) == expected
    assert did_you_mean(name, NAMES) == (f"; did you mean '{expected}'?" if expected else "")
    assert closest("x", ()) is None
    assert closest("key", [f"key{number}" for number in range(2000)]) is None  # too many to compare
