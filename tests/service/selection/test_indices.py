"""Indices as Python and numpy understand them; and what is refused."""

import numpy as np
import pytest

from service.base.errors import Invalid
from service.selection.indices import MAX_ITEMS, MAX_PLACES, read_indices

SELECTED = {  # of an axis of 10
    "0": [0],
    "-1": [9],
    "0,3,5:8,-1": [0, 3, 5, 6, 7, 9],
    " 2 , 4 : 6 ": [2, 4, 5],
    "7:": [7, 8, 9],
    ":2": [0, 1],
    "-3:": [7, 8, 9],
    "8:100": [8, 9],
    "1:9:3": [1, 4, 7],
    "::-1": [9, 8, 7, 6, 5, 4, 3, 2, 1, 0],
    "5,2": [5, 2],
    "9,0,4": [9, 0, 4],
    3: [3],
    -10: [0],
    (0,): [0],  # a list
    (-1, 3, 0): [9, 3, 0],
    tuple(range(10)): [*range(10)],
}
REFUSED = {
    "10": "expected indices from -10 to 9, got 10",
    "-11": "expected indices from -10 to 9, got -11",
    "1,1": "1 is selected twice",
    "0:3,2": "2 is selected twice",
    "5:5": "selects none of the indices 0 to 9",
    "20:30": "selects none",
    "": "expected an index",
    "1,": "expected an index",
    "a": "got 'a'",
    "1.5": "got '1.5'",
    "1:2:3:4": "got '1:2:3:4'",
    "::0": "the step of '::0' is 0",
    "1e2": "got '1e2'",
    "٣": "expected an index",
    "99999999999": "expected an index",
    "4294967296": "expected indices from",
    ",".join(["1"] * (MAX_ITEMS + 1)): f"expected at most {MAX_ITEMS} indices",
    "1" * 20_000: "expected at most",
}


def resolved(value):
    return np.arange(10)[read_indices("heads", value).resolve("heads", 10)].tolist()


@pytest.mark.parametrize(("value", "expected"), SELECTED.items())
def test_selected(value, expected):
    assert resolved([*value] if isinstance(value, tuple) else value) == expected


@pytest.mark.parametrize("text", ["3", "2:7", "::3", "8:2:-2", "3,4,5", "::-1"])
def test_what_is_a_slice_copies_nothing(text):
    assert isinstance(read_indices("heads", text).resolve("heads", 10), slice)


@pytest.mark.parametrize("text", [":", "::-2", "1:"])
def test_a_range_of_any_length_takes_no_memory(text):
    size, expected = 1 << 40, range(1 << 40)[slice(*(int(part) if part else None for part in text.split(":")))]
    assert range(size)[read_indices("queries", text).resolve("queries", size)] == expected


def test_several_items_select_few():
    indices = read_indices("queries", "1:,0")
    assert len(indices.resolve("queries", MAX_PLACES)) == MAX_PLACES
    with pytest.raises(Invalid, match="queries: expected one range, or at most 65,536 indices, got 65,537"):
        indices.resolve("queries", MAX_PLACES + 1)


@pytest.mark.parametrize(("value", "said"), REFUSED.items(), ids=range(len(REFUSED)))
def test_refused(value, said):
    with pytest.raises(Invalid, match=r"^heads: ") as caught:
        resolved(value)
    assert said in caught.value.detail


@pytest.mark.parametrize("value", [True, 1.0, [True], ["1"], [[1]], [], {}, [1.0], 2**40])
def test_refused_types(value):
    with pytest.raises(Invalid, match=r"^heads: expected"):
        resolved(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(2, [2]), (-1, [3]), ([-4, 5], [0, 5]), ("-1:", [3, 4, 5]), (":-2", [0, 1]), ("-9:2", [0, 1]), (":", [*range(6)])],
)
def test_negative_indices_may_count_from_within_an_axis(value, expected):
    counted = read_indices("positions", value).counted_from("positions", 4)
    assert np.arange(6)[counted.resolve("positions", 6)].tolist() == expected


def test_no_counted_index_is_before_the_first():
    with pytest.raises(Invalid, match=r"positions: expected -4 or more, got -5"):
        read_indices("positions", -5).counted_from("positions", 4)
