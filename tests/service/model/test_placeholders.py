"""Tokens that stand for rows of another input, as those for pictures do."""

import numpy as np
import pytest

from service.base.errors import Invalid
from service.model.checks import check_placeholders
from service.model.spec import Placeholder

PICTURE = Placeholder(token=7, count=2)


@pytest.mark.parametrize(("ids", "rows"), [([1, 7, 7, 3], 1), ([7, 1, 7, 7, 7], 2), ([1, 2], 0)])
def test_each_row_has_its_tokens_wherever_they_are(ids, rows):
    check_placeholders("pixel_values", PICTURE, np.array([ids]), rows)


@pytest.mark.parametrize(
    ("ids", "rows", "message"),
    [
        ([7], 1, "expected 2 tokens 7, 2 for each of 1 row of pixel_values (in a text, one becomes 2), got 1"),
        ([7, 7, 7], 2, "expected 4 tokens 7, 2 for each of 2 rows of pixel_values (in a text, one becomes 2), got 3"),
        ([7, 7], 0, "2 tokens 7 stand for rows of pixel_values, 2 for each; there is none"),
    ],
)
def test_another_number_of_tokens_is_refused(ids, rows, message):
    with pytest.raises(Invalid) as raised:
        check_placeholders("pixel_values", PICTURE, np.array([ids]), rows)
    assert (raised.value.field, str(raised.value)) == ("input_ids", f"input_ids: {message}")
