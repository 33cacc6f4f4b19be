"""Half precision through both faces: numbers rounded on their way in, written so that they read back as the same."""

import shutil

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from export.verification.budget import error_budget, largest_error
from export.verification.checks import in_torch
from tests.support import graphs, v2
from tests.support.application import running
from tests.support.attending import attend, coded, post
from tests.support.halves import HALVES

pytestmark = pytest.mark.extended  # it takes 10 seconds to export them
ATTENTION, EFFICIENT = HALVES


def halved(numbers, dtype) -> np.ndarray:
    """Numbers in a half precision."""
    return np.asarray(numbers, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@pytest.fixture(scope="module")
def repository_of_halves(halves, tmp_path_factory):
    """Those two, and a third whose product in bfloat16 the CPU has no kernel for."""
    folder = tmp_path_factory.mktemp("halves")
    shutil.copytree(halves, folder, dirs_exist_ok=True)
    broken = folder / "broken_bfloat16" / "1"
    node = helper.make_node("MatMul", ["query", "query"], ["output"])
    graphs.write(broken, [node], *([(name, "BF16", ["n", "n"])] for name in ("query", "output")))
    model = onnx.load(broken / "model.onnx")
    model.metadata_props.extend(onnx.load(halves / EFFICIENT / "1" / "model.onnx").metadata_props)
    onnx.save(model, broken / "model.onnx")
    return folder


@pytest.fixture(scope="module")
def client(repository_of_halves):
    with running(repository_of_halves, ready_when="any") as client:
        yield client


def drawn(*lengths, batch=1, dtype="float16"):
    rng = np.random.default_rng(sum(lengths))
    m, n = lengths
    shapes = {"query": (batch, 2, m, 8), "key": (batch, 2, n, 8), "value": (batch, 2, n, 8)}
    return {name: rng.standard_normal(shape).astype(dtype).astype(np.float32) for name, shape in shapes.items()}


def assert_right(name, actual, inputs):
    block = HALVES[name]
    module = block.build()

    def refer(given, dtype):
        return in_torch(block, module, given) if dtype == np.float32 else block.reference(module, given, dtype)

    exact, budget = refer(inputs, np.float64), error_budget(refer, inputs, dtype=block.dtype)
    for output, got in actual.items():
        assert largest_error(got, exact[output]) <= budget[output], output


@pytest.mark.parametrize("name", HALVES)
def test_native_numbers(name, client):
    dtype = HALVES[name].dtype
    inputs = drawn(5, 7, dtype=dtype)
    actual = attend(client, name, **inputs)
    assert_right(name, actual, inputs)
    for array in actual.values():
        np.testing.assert_array_equal(array.astype(dtype).astype(np.float32), array)  # digits of half numbers
    texts = {key: coded(halved(array, dtype), dtype=dtype) for key, array in inputs.items()}
    np.testing.assert_array_equal(attend(client, name, **texts)["weights"], actual["weights"])


def test_native_masks_and_options(client):
    inputs = drawn(4, 6)
    mask = np.random.default_rng(1).random((4, 6)) < 0.6
    mask[2] = False
    actual = attend(client, ATTENTION, **inputs, attn_mask=mask, is_causal=True)
    added = np.where(mask, 0, -np.inf).astype(np.float32)[None, None]
    assert_right(ATTENTION, actual, {**inputs, "attn_mask": added, "is_causal": np.array(True)})
    assert not actual["weights"][:, :, 2].any()


@pytest.mark.parametrize(("name", "most"), [(ATTENTION, 65520), (EFFICIENT, 3.4e38)])
def test_numbers_past_the_range_are_refused(name, most, client):
    refused = post(client, name, {**drawn(2, 2), "query": np.full((1, 2, 2, 8), most)})
    assert refused.status_code == 422
    assert refused.json()["detail"].endswith(f"a number out of range for {HALVES[name].dtype}")


def test_the_descriptions_name_the_types(client):
    block = client.get(f"/v1/attention/{ATTENTION}").json()
    dtypes = {entry["name"]: entry["dtype"] for entry in (*block["inputs"], *block["parameters"])}
    assert dtypes == dict.fromkeys(("query", "key", "value"), "float16") | {
        "attn_mask": "float16 or bool", "is_causal": "bool", "scale": "float32",
    }  # fmt: skip
    assert "rounded to float16 after every operator" in block["verified"]
    model = client.get(f"/v2/models/{EFFICIENT}").json()
    assert {entry["datatype"] for entry in (*model["inputs"], *model["outputs"])} == {"BF16"}
    assert client.get(f"/v1/attention/{EFFICIENT}").json()["outputs"][0]["dtype"] == "bfloat16"


@pytest.mark.parametrize(("name", "datatype"), [(ATTENTION, "FP16"), (EFFICIENT, "BF16")])
def test_v2_numbers(name, datatype, client):
    inputs = drawn(3, 5, batch=2, dtype=HALVES[name].dtype)
    tensors = [v2.tensor(key, array) | {"datatype": datatype} for key, array in inputs.items()]
    (output,) = v2.infer(client, name, {"inputs": tensors, "outputs": [{"name": "output"}]}).json()["outputs"]
    assert output["datatype"] == datatype
    assert_right(name, {"output": np.array(output["data"], np.float32).reshape(output["shape"])}, inputs)


def test_a_model_that_needs_cuda_is_named_and_harms_no_other(client):
    index = {of["name"]: of for of in client.post("/v2/repository/index").json()}
    assert index["broken_bfloat16"]["state"] == "UNAVAILABLE"
    assert index["broken_bfloat16"]["reason"] == "bfloat16 needs CUDA: ONNX Runtime's CPU has no kernels for it"
    assert index[ATTENTION]["state"] == index[EFFICIENT]["state"] == "READY"
    assert post(client, "broken_bfloat16", {}).status_code == 503
