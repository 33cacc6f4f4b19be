"""Tokens that stand for rows of another input, as those for pictures do."""

import numpy as np
import pytest

from service.base.errors import Invalid
from service.model.checks import check_placeholders
from service.model.spec import Placeholder

ONE = "; of a text one <image> becomes as many"
PICTURE = Placeholder(token=7, count=2, text="<image>")


@pytest.mark.parametrize(("ids", "rows"), [([1, 7, 7, 3], 1), ([7, 1, 7, 7, 7], 2), ([1, 2], 0)])
def test_each_row_has_its_tokens_wherever_they_are(ids, rows):
    check_placeholders("pixel_values", PICTURE, np.array([ids]), rows)


@pytest.mark.parametrize(
    ("ids", "rows", "message"),
    [
        ([7], 1, "expected 2 of token 7 (<image>) for each row of pixel_values{one}: 2 for 1 row, got 1"),
        ([7, 7, 7], 2, "expected 2 of token 7 (<image>) for each row of pixel_values{one}: 4 for 2 rows, got 3"),
        ([7, 7], 0, "expected 2 of token 7 (<image>) for each row of pixel_values{one}: 0 for 0 rows, got 2"),
    ],
)
def test_another_number_of_tokens_is_refused(ids, rows, message):
    with pytest.raises(Invalid) as raised:
        check_placeholders("pixel_values", PICTURE, np.array([ids]), rows)
    assert (raised.value.field, str(raised.value)) == ("input_ids", f"input_ids: {message.format(one=ONE)}")
