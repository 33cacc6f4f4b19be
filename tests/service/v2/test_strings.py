"""Strings in binary are decoded in steps, no more of them than the JSON declares, and in the memory budget."""

import json
from collections import Counter
from itertools import pairwise

import pytest

from service.base.budget import MemoryBudget, Reservation
from service.base.errors import Invalid, Malformed, Overloaded, TooMuchMemory
from service.base.steps import drain as drain_steps
from service.base.timing import Timing
from service.http.direct import RequestContext
from service.v2 import datatypes
from service.v2.datatypes import CHARACTER_BYTES, MAX_STRING_BYTES, MAX_STRINGS, STEP_BYTES, unpack_strings
from service.v2.infer.endpoint import InferEndpoint
from tests.support import graphs
from tests.support.application import opened
from tests.support.decoding import drain, endpoint
from tests.support.v2 import binary_input, packed

ENDPOINT = endpoint(InferEndpoint)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    graphs.identity(folder / "strings" / "1", "BYTES")
    return opened(folder).model("strings")


@pytest.fixture
def decoded(monkeypatch):
    """The lengths of the strings that are decoded."""
    lengths = []
    decode = datatypes.decode_string
    monkeypatch.setattr(datatypes, "decode_string", lambda name, text: lengths.append(len(text)) or decode(name, text))
    return lengths


def infer(model, shape, content, limit=1 << 40, **header):
    """The strings that the model gets, and the bytes that are reserved for them."""
    reservation = Reservation(MemoryBudget(limit, Overloaded, Counter()))
    given = b"" if header else json.dumps({"inputs": [binary_input("x", shape, len(content), "BYTES")]}).encode()
    headers = {b"inference-header-content-length": b"0"} if header else {}
    request = drain(ENDPOINT.decode(model, (given, content), RequestContext(headers, Timing(), reservation)))
    return request.task.inputs["x"].reshape(-1).tolist(), reservation.bytes


def test_no_string_after_the_declared_ones_is_decoded(model, decoded):
    with pytest.raises(Invalid, match="expected 1 strings for inference input 'x', got more"):
        infer(model, [1, 1], bytes(4 << 20))
    assert decoded == [0]


def test_an_input_has_a_limited_number_of_strings(model, decoded):
    assert infer(model, [1, MAX_STRINGS], bytes(4 * MAX_STRINGS))[0] == [""] * MAX_STRINGS
    decoded.clear()
    with pytest.raises(Invalid, match=f"input 'x': expected at most {MAX_STRINGS} strings"):
        infer(model, [1, MAX_STRINGS + 1], bytes(4 * MAX_STRINGS + 4))
    assert not decoded


@pytest.mark.parametrize("raw", [{}, {"raw": True}], ids=["JSON", "raw"])
def test_a_string_has_a_limited_length(model, raw):
    frame = (lambda text: text) if raw else (lambda text: len(text).to_bytes(4, "little") + text)
    longest = b"a" * MAX_STRING_BYTES
    assert infer(model, [1, 1], frame(longest), **raw)[0] == [longest.decode()]
    with pytest.raises(Invalid, match=f"input 'x': expected at most {MAX_STRING_BYTES} bytes in a string"):
        infer(model, [1, 1], frame(longest + b"a"), **raw)


@pytest.mark.parametrize(("text", "most"), [("", 1 << 10), ("a" * (STEP_BYTES // 8), 9)], ids=["many", "long"])
def test_strings_are_decoded_in_steps(decoded, text, most):
    count = 64 * most
    content = memoryview(packed([text] * count))
    steps = [len(decoded) for _ in unpack_strings("x", content, count)]
    assert len(decoded) == count
    assert max(after - before for before, after in pairwise([*steps, count])) <= most


def test_strings_are_part_of_the_memory_budget(model, decoded):
    for raw in ({}, {"raw": True}):
        text = "é" * 1000
        content = text.encode() if raw else packed([text])
        found, reserved = infer(model, [1, 1], content, **raw)
        assert found == [text]
        assert reserved >= len(content) * CHARACTER_BYTES
        decoded.clear()
        with pytest.raises(TooMuchMemory):
            infer(model, [1, 1], content, limit=len(content), **raw)
        assert not decoded


def test_wrong_sizes_are_named_before_memory_is_reserved(model):
    given = json.dumps({"inputs": [binary_input("x", [1, 1], 1 << 40, "BYTES")]}).encode()
    context = RequestContext({}, Timing(), Reservation(MemoryBudget(1 << 20, Overloaded, Counter())))
    with pytest.raises(Malformed, match="unexpected size for input 'x'"):
        drain(ENDPOINT.decode(model, (given, bytes(4)), context))


def test_no_strings_are_an_empty_tensor():
    assert drain_steps(unpack_strings("x", memoryview(b""), 0)).shape == (0,)
    with pytest.raises(Invalid, match="expected 0 strings for inference input 'x', got more"):
        drain_steps(unpack_strings("x", memoryview(bytes(4)), 0))
