"""V2 requests drawn at random, as text: valid ones, odd ones and wrong ones, each with siblings of the same form.

Siblings differ in what a client changes from one request to the next (numbers, id, bytes), or in a mangled byte.
"""

import json
import re
from math import prod
from typing import NamedTuple

from hypothesis import strategies as st

from service.model.model import Model
from service.v2.datatypes import BYTES, DATATYPES, NAMES

ID = "\2"  # these stand for what is filled in: an id, and a list of 2 numbers
NUMBERS = "\1{}\1"
TWO = NUMBERS.format(2)
HOLES = re.compile(f"{ID}|{NUMBERS.format('([0-9]+)')}")
COLONS, COMMAS = [":", ":", ": ", " :", ":\n", "\t: "], [",", ",", ", ", "\n,"]
ODD = ["true", "null", "1.5", "-1", "1e400", "1e39", "300", "18446744073709551616", "NaN", '"]"', "[1]", "{}", "01"]
IDS = ["", "a", "1f0b7c52-0d7c-4c1e", "]", '"data":[1]', "\\", 'say "data"', "ü", "\n", "\0", "\x7f", "{[,", "\u2028"]
MANGLED = [b"", *(bytes([of]) for of in b'"[]{},:\\ 0\0\xff'), b'"data":[1]', b'"id":"b",']
TEXTS = [b"\2\0\0\0ab", b'\2\0\0\0"]', b"\2\0\0\0[]"]
ODD_TEXTS = [*TEXTS[:2], b"\2\0\0\0\xff\xfe"]
EXTRA = [
    ('"data"', TWO),
    ('"data"', "null"),
    ('"data"', [('"data"', TWO)]),
    (r'"d\u0061ta"', TWO),
    (r'"\"data"', TWO),
    ('"data "', TWO),
    ('"id"', ID),
    ('"id"', "7"),
    (r'"\u0069d"', ID),
    ('"model_name"', '"m"'),
    ('"note"', json.dumps('"data":[1],"id":"x" ]}')),
    ('"more"', ([('"data"', TWO)], TWO)),
]


class Request(NamedTuple):
    """The JSON, and the bytes behind it."""

    content: bytes
    attached: bytes


@st.composite
def siblings(draw, model: Model) -> list[Request]:
    """Two requests of one form to ``model``, and sometimes a third that is mangled."""
    drawing = _Drawing(draw)
    form, behind = drawing.form(model)
    requests = [drawing.request(form, behind) for _ in range(2)]
    if drawing.odd(2):
        content, attached = requests[1]
        place = draw(st.integers(0, len(content)))
        mangled = content[:place] + drawing.one(MANGLED) + content[place + draw(st.integers(0, 1)) :]
        requests.append(Request(mangled, attached))
    return requests


class _Drawing:
    """Draws from hypothesis; half of what it draws has nothing odd in it."""

    def __init__(self, draw):
        self.draw = draw
        self.is_odd = draw(st.booleans())

    def rarely(self, one_in):
        return self.draw(st.integers(0, one_in - 1)) == one_in // 2

    def odd(self, one_in):
        return self.is_odd and self.rarely(one_in)

    def one(self, of):
        return self.draw(st.sampled_from(of))

    def some(self, of, count):
        return self.draw(st.lists(st.sampled_from(of), min_size=count, max_size=count))

    def form(self, model):
        """The text with its holes, and the strategies of the bytes behind it."""
        behind = []
        given = [of for of in model.inputs.values() if of.required or self.rarely(9)]
        fields = [('"inputs"', tuple(self.entry(of, behind) for of in given))]
        if self.rarely(3):
            parameters = [('"binary_data_output"', self.one(["true", "false"])), ('"priority"', "3")]
            fields.append(('"parameters"', self.strewn(parameters)))
        if self.rarely(2):
            fields.append(('"outputs"', (self.strewn([('"name"', f'"{next(iter(model.outputs))}"')]),)))
        fields = self.strewn(self.draw(st.permutations(fields)))
        if self.rarely(2):
            fields.insert(0 if self.rarely(2) else len(fields), ('"id"', ID))
        before, after = (self.one(["", "\n", odd]) if self.odd(4) else "" for odd in ("\ufeff", "x"))
        return before + _text(fields, self.one(COLONS), self.one(COMMAS)) + after, behind

    def entry(self, of, behind):
        """One input."""
        sizes = [dim if isinstance(dim, int) else self.one([2, 1, 0]) if self.odd(9) else 2 for dim in of.shape]
        said = self.one(list(DATATYPES.values())) if self.odd(9) else of.dtype
        fields = [('"name"', f'"{of.name}"'), ('"shape"', json.dumps(sizes)), ('"datatype"', f'"{NAMES[said]}"')]
        count = prod(sizes)
        if self.rarely(3):
            size = count * (6 if said == BYTES else said.itemsize)
            fields.append(('"parameters"', [('"binary_data_size"', str(size))]))
            texts = st.lists(st.sampled_from(ODD_TEXTS if self.is_odd else TEXTS), min_size=count, max_size=count)
            behind.append(texts.map(b"".join) if said == BYTES else st.binary(min_size=size, max_size=size))
        elif said == BYTES:
            fields.append(('"data"', json.dumps(self.some(IDS, count), ensure_ascii=False)))
        elif of.dtype.kind == "b" or self.odd(9):
            fields.append(('"data"', f"[{','.join(self.some(['true', 'false'], count))}]"))
        else:
            numbers = NUMBERS.format(count)
            fields.append(('"data"', (numbers,) if self.odd(9) else numbers))
        return self.strewn(self.draw(st.permutations(fields)))

    def strewn(self, fields):
        """With something else among them, now and then."""
        fields = list(fields)
        if self.odd(6):
            fields.insert(self.draw(st.integers(0, len(fields))), self.one(EXTRA))
        return fields

    def request(self, form, behind):
        """The form, filled in."""
        content = HOLES.sub(self.fill, form)
        return Request(content.encode(), b"".join(map(self.draw, behind)) + bytes(self.odd(9)))

    def fill(self, hole):
        """An id, or a list of numbers."""
        if not hole[1]:
            return json.dumps(self.one(IDS), ensure_ascii=self.draw(st.booleans()))
        count = int(hole[1])
        count += self.one([-1, 1]) if count and self.odd(9) else 0
        numbers = self.some(["0", "1", "2", "1e0"] if self.is_odd else ["0", "1", "2", "3"], count)
        if numbers and self.odd(4):
            numbers[-1] = self.one(ODD)
        return f"[{self.one([',', ', ', ' ,']).join(numbers)}]"


def _text(value, colon: str, comma: str) -> str:
    """JSON of objects, which are lists of pairs; lists, which are tuples; and what is JSON already."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return f"[{comma.join(_text(item, colon, comma) for item in value)}]"
    return "{" + comma.join(key + colon + _text(item, colon, comma) for key, item in value) + "}"
