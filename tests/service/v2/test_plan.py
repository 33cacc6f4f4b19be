"""What was understood once answers the next request of its form exactly as if it were read anew."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.base.cache import BoundedCache
from service.base.errors import HeedError
from service.codec import json_parser as json_document
from service.engine.run import run_alone
from service.http.response import error_response
from service.v2.infer import endpoint as infer
from service.v2.infer.endpoint import InferEndpoint
from service.v2.infer.plan import MAX_TEMPLATE_BYTES, find_template
from tests.service.v2.siblings import Request, siblings
from tests.support import graphs
from tests.support.application import opened
from tests.support.decoding import context, drain, endpoint
from tests.support.v2 import QKV, binary_input, tensor

IDENTITIES = ["FP32", "FP16", "INT64", "UINT8", "BOOL", "BYTES"]
FEW = ["FP32", "BOOL", "BYTES", "adder", "mixed", "scaled_dot_product"]  # which take every path of the plan
MORE = ["FP16", "INT64", "UINT8", "product", "scalar"]
ENDPOINT = endpoint(InferEndpoint)
MAX_PLANS = BoundedCache()._max_entries


@pytest.fixture(scope="module")
def models(repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name in ("adder", "product", "mixed", "scalar", "places"):
        getattr(graphs, name)(folder / name / "1")
    for name in IDENTITIES:
        graphs.identity(folder / name / "1", name)
    (folder / "scaled_dot_product").symlink_to(repository / "scaled_dot_product")
    return opened(folder, intra_op_threads=1)


def decoded(content, attached, model):
    return drain(ENDPOINT.decode(model, (content, attached), context()))


def answer(model, request):
    """Status, body and header fields."""
    try:
        asked = decoded(request.content, request.attached, model)
        pieces, fields = drain(ENDPOINT.encode(asked, run_alone(asked.task), context()))
    except HeedError as error:
        refusal = error_response("/v2", error)
        return refusal.status_code, bytes(refusal.body), None
    return 200, b"".join(pieces), fields


def fresh(model, request):
    ENDPOINT.cache(model).clear()
    return answer(model, request)


def assert_same(model, requests):
    """Each request is answered as it is by a model that has seen none, whichever of the others came before it."""
    expected = [fresh(model, request) for request in requests]
    for first in requests:
        fresh(model, first)
        assert [answer(model, request) for request in requests] == expected


@pytest.mark.parametrize("name", [*FEW, *(pytest.param(name, marks=pytest.mark.extended) for name in MORE)])
@settings(max_examples=60)
@given(data=st.data())
def test_any_request_is_answered_as_if_it_were_the_first(models, name, data):
    model = models.model(name)
    assert_same(model, data.draw(siblings(model)))


def said(*inputs, attached=b"", **fields):
    return Request(json.dumps({**fields, "inputs": list(inputs)}).encode(), attached)


def plain(numbers, **fields):
    return said(tensor("x", [numbers]), **fields)


def raw(text, *fills):
    return [Request(text.replace("?", fill).encode(), b"") for fill in fills]


X = '{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32",%s}]%s}'
Z = binary_input("z", [1, 3], 12)
MISLEADING = {
    "an id after the inputs": ("FP32", raw(X % ('"data":[1,2]', ',"id":"?"'), "a", "b")),
    "a list that is no tensor's": ("FP32", raw(X % ('"data" :[1,2]', ',"data":[?]'), "1,2", "8,9")),
    "a list that is closed twice": ("FP32", raw(X % ('"data":?', ""), "[ [1,2]]", "[1,2]]", "[\n[1,2]]", "[3,4]]")),
    "a key with an escape": ("FP32", raw(X % (r'"d\u0061ta":[1,2],"data":[?]', ""), "1,2", "8,9")),
    "a key that ends alike": ("FP32", raw(X % (r'"\"data":[?],"data" :[1,2]', ""), "1,2", "8,9")),
    "numbers where booleans were": (
        "scaled_dot_product",
        [
            said(*QKV, {"name": "attn_mask", "shape": [1, 1, 2, 2], "datatype": "BOOL", "data": mask})
            for mask in ([True, False, True, True], [1, 0, 1, 1])
        ],
    ),
    "wrong in two ways": (
        "adder",
        [
            said(tensor("x", [[1, 2, 3]]), Z, attached=bytes(12)),
            said({"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2]}, Z, attached=bytes(13)),
        ],
    ),
    "outputs whose shapes the numbers choose": (
        "places",
        [
            request
            for outputs in ("", ',"outputs":[{"name":"y","parameters":{"binary_data":true}}]')
            for request in raw(X % ('"data":[?]', outputs), "1,0", "1,1", "0,0", "0,1")
        ],
    ),
    "named in the order they were given": (
        "product",
        [said(tensor("a", [[1, 2, 3]]), binary_input("b", [2, 1], 8), attached=bytes(8))] * 2,
    ),
}


@pytest.mark.parametrize(("name", "requests"), MISLEADING.values(), ids=MISLEADING)
def test_what_looks_alike_is_told_apart(models, name, requests):
    assert_same(models.model(name), requests)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_what_clients_send_is_understood_once(models, separators):
    model = models.model("FP32")
    ENDPOINT.cache(model).clear()
    first, second = (
        json.dumps(json.loads(plain(numbers, id=name).content), separators=separators).encode()
        for numbers, name in (([1, 2], "a"), ([3.5, -4e3], "another"))
    )
    kept = decoded(first, b"", model).plan
    asked = decoded(second, b"", model)
    assert asked.plan is kept
    assert asked.id == b'"another"'
    assert asked.task.inputs["x"].tolist() == [[3.5, -4e3]]


def test_plans_are_bounded_and_the_oldest_goes_first(models):
    model = models.model("FP32")
    ENDPOINT.cache(model).clear()
    for rows in range(1, MAX_PLANS + 10):
        answer(model, said(tensor("x", [[1]] * rows)))
    plans = ENDPOINT.cache(model)._entries
    assert len(plans) == MAX_PLANS
    assert b"[10, 1]" in b"".join(next(iter(plans)))
    long = plain([1, 2], parameters={"binary_data_output": False}, note="x" * 5000)
    assert answer(model, long)[0] == 200
    assert all(len(b"".join(pieces)) < 5000 for pieces in plans)


def test_a_model_loaded_anew_has_no_plans(models):
    old = models.model("FP32")
    answer(old, plain([1, 2]))
    assert ENDPOINT.cache(old)
    models.load_model("FP32")
    assert not ENDPOINT.cache(models.model("FP32"))


@pytest.mark.parametrize("end", ["", ",", ", ", " ,", ",,", " ", ",            ,1"])
def test_lists_in_pieces(models, monkeypatch, end):
    """Wherever a piece ends, what is no list is refused."""
    for piece in range(1, 12):
        monkeypatch.setattr(json_document, "PIECE_BYTES", piece)
        for count in range(1, 20):
            numbers = ",".join("1" * count) + end
            good = ",".join("1" * numbers.count("1"))
            shape = f"[1,{numbers.count('1')}]"
            text = X.replace("[1,2]", shape, 1) % ('"data":[?]', "")
            assert_same(models.model("FP32"), raw(text, good, numbers))


def test_threads_share_plans(models, monkeypatch):
    """Each drops what another has just kept, or is about to use."""
    model = models.model("FP32")
    monkeypatch.setitem(ENDPOINT._caches, model, BoundedCache(1))
    requests = [said(tensor("x", [[rows]] * rows)) for rows in range(1, 4)]

    def ask(seed):
        for at in np.random.default_rng(seed).integers(0, len(requests), 2000):
            asked = decoded(requests[at].content, b"", model)
            assert asked.task.inputs["x"].tolist() == [[at + 1]] * (at + 1)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(ask, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert len(ENDPOINT.cache(model)) == 1


def test_many_numbers_of_a_mask_are_checked_beside_the_event_loop(models, monkeypatch):
    """Of a new request and of one whose plan is known."""
    model, shape = models.model("scaled_dot_product"), [1, 1, 2, 2]
    mask = {"name": "attn_mask", "shape": shape, "datatype": "FP32", "data": [0, -1, 0, 0]}
    for most, is_beside in ((3, True), (4, False)):
        monkeypatch.setattr(infer, "MAX_CHECKED", most)
        ENDPOINT.cache(model).clear()
        for _ in range(2):
            drain(ENDPOINT.decode(model, (said(*QKV, mask).content, b""), context()), costs := [])
            assert (ENDPOINT.checking in costs) == is_beside


def test_a_template_is_looked_for_at_the_beginning_alone():
    """To search and to copy megabytes would keep other requests waiting."""
    inputs, blanks = b'"inputs":[{"name":"x","datatype":"FP32","shape":[1,1],"data":[1]}]', b" " * MAX_TEMPLATE_BYTES
    template = find_template(b'{"id":"a",%b}' % inputs)
    assert template is not None
    assert (template.id, len(template.lists)) == (b'"a"', 1)
    for text in (b"{%b%b}" % (blanks, inputs), b"{%b%b}" % (inputs, blanks), b'{"id":"%b",%b}' % (blanks, inputs)):
        assert find_template(text) is None
