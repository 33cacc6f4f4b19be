"""Lists and objects in ``parameters`` are refused or ignored as they are: none becomes an object of Python."""

import tracemalloc
from contextlib import suppress

import pytest

from service.base.errors import HeedError, Malformed
from service.codec.json_parser import parse_object
from service.codec.json_reader import JsonReader
from service.inference.source import InputSource
from service.v2.infer.parameters import MAX_NAME_CHARACTERS, of_request
from service.v2.infer.request import parse
from tests.support import graphs
from tests.support.application import opened

INPUT = b'"name":"x","shape":[1,2],"datatype":"INT64","data":[1,2]'
PLACES = {
    "request": b'{"parameters":%%b,"inputs":[{%b}]}' % INPUT,
    "input": b'{"inputs":[{"parameters":%%b,%b}]}' % INPUT,
    "output": b'{"inputs":[{%b}],"outputs":[{"name":"y","parameters":%%b}]}' % INPUT,
}
MANY = 100_000  # as Python objects: 5 MB and more
PARAMETERS = {
    "list": b'{"a":[%b{}]}' % (b"{}," * MANY),
    "object": b'{"a":{%b"b":0}}' % b"".join(b'"%d":0,' % key for key in range(MANY)),
    "list for a size": b'{"binary_data_size":[%b0]}' % (b"[]," * MANY),
    "many": b'{%b"b":[]}' % b"".join(b'"%d":[],' % key for key in range(MANY)),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    graphs.identity(folder / "numbers" / "1", "INT64")
    return opened(folder).model("numbers")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("parameters", PARAMETERS.values(), ids=PARAMETERS)
def test_lists_and_objects_are_not_converted(model, place, parameters):
    body = PLACES[place] % parameters
    tracemalloc.start()
    with suppress(HeedError):
        parse(body, (), model, InputSource())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * len(body)  # which a comparison of its bytes may take


def read(content):
    return of_request(parse_object(content), JsonReader())


def test_names_are_short_as_each_is_compared_with_the_others():
    longest = b"a" * MAX_NAME_CHARACTERS
    assert read(b'{"%b":1}' % longest) == {longest.decode(): 1}
    with pytest.raises(Malformed, match=f"at most {MAX_NAME_CHARACTERS} characters"):
        read(b'{"%ba":1}' % longest)


def test_any_name_is_read():
    """simdjson ends the name of a look-up at its first zero byte."""
    assert read(rb'{"": 1, "\u00e9": 2, "a/b~0": 3, "a": null, "a": 4}') == {"": 1, "é": 2, "a/b~0": 3, "a": None}
    assert read(rb'{"x\u0000y": 1}') == {"x\0y": None}
