"""Half precision through both faces: numbers rounded on their way in, written so that they read back as the same."""

import shutil

import ml_dtypes
import numpy as np
import onnx
import orjson
import pytest
from onnx import TensorProto, helper

from export.verification import error_budget, in_torch, largest_error
from service.engine.batch import pad, split
from service.engine.run import masked_graph
from service.engine.task import InferenceTask
from service.model.loader import load_version
from service.ort.provider import Provider
from service.tensors.bfloat16 import BFLOAT16, astype, dtype_name, to_float32
from tests.support.attending import attend, coded, post
from tests.support.halves import HALVES
from tests.support.server import serving

ATTENTION, EFFICIENT = HALVES


def bits(numbers) -> np.ndarray:
    """Numbers in bfloat16, as the service holds them."""
    return np.asarray(numbers, ml_dtypes.bfloat16).view(BFLOAT16)


@pytest.fixture(scope="module")
def repository_of_halves(halves, tmp_path_factory):
    """Those two, and a third whose product in bfloat16 the CPU has no kernel for."""
    folder = tmp_path_factory.mktemp("halves")
    shutil.copytree(halves, folder, dirs_exist_ok=True)
    broken = folder / "broken_bfloat16" / "1"
    broken.mkdir(parents=True)
    infos = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, ["n", "n"]) for name in ("query", "output")]
    graph = helper.make_graph([helper.make_node("MatMul", ["query", "query"], ["output"])], "g", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    model.metadata_props.extend(onnx.load(halves / EFFICIENT / "1" / "model.onnx").metadata_props)
    onnx.save(model, broken / "model.onnx")
    return folder


@pytest.fixture(scope="module")
def server(repository_of_halves):
    with serving(repository_of_halves, "--provider", "cpu", "--ready-when", "any") as client:
        yield client


def drawn(*lengths, batch=1, dtype="float16"):
    rng = np.random.default_rng(sum(lengths))
    m, n = lengths
    shapes = {"query": (batch, 2, m, 8), "key": (batch, 2, n, 8), "value": (batch, 2, n, 8)}
    return {name: rng.standard_normal(shape).astype(dtype).astype(np.float32) for name, shape in shapes.items()}


def assert_right(name, found, inputs):
    block = HALVES[name]
    module = block.build()

    def refer(given, dtype):
        return in_torch(block, module, given) if dtype == np.float32 else block.reference(module, given, dtype)

    exact, budget = refer(inputs, np.float64), error_budget(refer, inputs, dtype=block.dtype)
    for output, got in found.items():
        assert largest_error(got, exact[output]) <= budget[output], output


def test_every_float32_is_rounded_as_it_should_be():
    numbers = np.random.default_rng(0).integers(0, 2**32, 1_000_000, np.uint32).view(np.float32)
    numbers = np.append(numbers, np.float32([0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1 + 2**-8, 1 + 3 * 2**-8]))
    with np.errstate(all="ignore"):
        expected = numbers.astype(ml_dtypes.bfloat16).astype(np.float32)
    held = astype(numbers, BFLOAT16)
    assert held.dtype == BFLOAT16
    np.testing.assert_array_equal(to_float32(held), expected)
    assert astype(held, np.dtype(np.float64)).dtype == np.float64
    assert [dtype_name(np.dtype(of)) for of in (BFLOAT16, np.float16)] == ["bfloat16", "float16"]


@pytest.mark.parametrize("name", HALVES)
def test_native_numbers(name, server):
    dtype = HALVES[name].dtype
    inputs = drawn(5, 7, dtype=dtype)
    found = attend(server, name, **inputs)
    assert_right(name, found, inputs)
    for array in found.values():
        np.testing.assert_array_equal(array.astype(dtype).astype(np.float32), array)  # digits of half numbers


def test_native_masks_and_options(server):
    inputs = drawn(4, 6)
    mask = np.random.default_rng(1).random((4, 6)) < 0.6
    mask[2] = False
    found = attend(server, ATTENTION, **inputs, attn_mask=mask, is_causal=True)
    added = np.where(mask, 0, -np.inf).astype(np.float32)[None, None]
    assert_right(ATTENTION, found, {**inputs, "attn_mask": added, "is_causal": np.array(True)})
    assert not found["weights"][:, :, 2].any()


@pytest.mark.parametrize(("name", "most"), [(ATTENTION, 65520), (EFFICIENT, 3.4e38)])
def test_numbers_past_the_range_are_refused(name, most, server):
    refused = post(server, name, {**drawn(2, 2), "query": np.full((1, 2, 2, 8), most)})
    assert refused.status_code == 422
    assert refused.json()["detail"].endswith(f"a number past the range of {HALVES[name].dtype}")


def test_base64_of_bfloat16(server):
    inputs = drawn(3, 4, dtype="bfloat16")
    text = {name: coded(bits(array), dtype="bfloat16") for name, array in inputs.items()}
    np.testing.assert_array_equal(
        attend(server, EFFICIENT, **text)["weights"], attend(server, EFFICIENT, **inputs)["weights"]
    )


def test_what_is_said_of_it(server):
    said = server.get(f"/v1/attention/{ATTENTION}").json()
    assert {of["name"]: of["dtype"] for of in said["inputs"]} == {
        "query": "float16", "key": "float16", "value": "float16", "attn_mask": "float16 or bool",
    }  # fmt: skip
    assert {of["name"]: of["dtype"] for of in said["parameters"]} == {"is_causal": "bool", "scale": "float32"}
    assert "rounded to float16 after every operator" in said["verified"]
    said = server.get(f"/v2/models/{EFFICIENT}").json()
    assert {of["datatype"] for of in (*said["inputs"], *said["outputs"])} == {"BF16"}
    assert server.get(f"/v1/attention/{EFFICIENT}").json()["outputs"][0]["dtype"] == "bfloat16"


@pytest.mark.parametrize(("name", "datatype"), [(ATTENTION, "FP16"), (EFFICIENT, "BF16")])
@pytest.mark.parametrize("binary", [False, True])
def test_v2(name, datatype, binary, server):
    dtype = np.dtype(HALVES[name].dtype)
    inputs = drawn(3, 5, batch=2, dtype=dtype.name)
    tensors = [{"name": key, "datatype": datatype, "shape": array.shape} for key, array in inputs.items()]
    for tensor, array in zip(tensors, inputs.values(), strict=True):
        tensor |= {"parameters": {"binary_data_size": 2 * array.size}} if binary else {"data": array.ravel().tolist()}
    attached = b"".join(array.astype(dtype).tobytes() for array in inputs.values()) if binary else b""
    head = orjson.dumps({"inputs": tensors, "outputs": [{"name": "output", "parameters": {"binary_data": binary}}]})
    answer = server.post(
        f"/v2/models/{name}/infer", content=head + attached, headers={"Inference-Header-Content-Length": str(len(head))}
    )
    assert answer.status_code == 200, answer.text
    length = int(answer.headers.get("Inference-Header-Content-Length", len(answer.content)))
    said = orjson.loads(answer.content[:length])["outputs"][0]
    assert said["datatype"] == datatype
    numbers = np.frombuffer(answer.content[length:], dtype) if binary else np.array(said["data"])
    assert_right(name, {"output": numbers.astype(np.float32).reshape(said["shape"])}, inputs)


def test_a_model_that_needs_cuda_is_named_and_harms_no_other(server):
    index = {of["name"]: of for of in server.post("/v2/repository/index").json()}
    assert index["broken_bfloat16"]["state"] == "UNAVAILABLE"
    assert index["broken_bfloat16"]["reason"] == "bfloat16 needs CUDA: ONNX Runtime's CPU has no kernels for it"
    assert index[ATTENTION]["state"] == index[EFFICIENT]["state"] == "READY"
    assert post(server, "broken_bfloat16", {}).status_code == 503


@pytest.mark.parametrize("masked", [False, True])
def test_requests_of_different_lengths_share_a_run(masked, halves):
    model = load_version(halves / ATTENTION / "1", Provider("cpu", "asked for"), 1, 64)
    outputs = list(model.outputs)
    works = []
    for m, n in ((3, 5), (4, 2)):
        inputs = {name: array.astype(np.float16) for name, array in drawn(m, n).items()}
        if masked:
            inputs["attn_mask"] = np.where(np.arange(n) % 2, -np.inf, 0).astype(np.float16)[None, None, None]
        works.append(InferenceTask(model, model.estimate(inputs, outputs, model.bind(inputs)), inputs, outputs))
    joined = pad(works, model.batching, model)
    found = model.run(masked_graph(works[0]), joined, outputs)
    for work, answer in zip(works, split(found, works, model.batching, model), strict=True):
        inputs = {name: array.astype(np.float32) for name, array in work.inputs.items()}
        assert_right(ATTENTION, {name: array.astype(np.float32) for name, array in answer.items()}, inputs)
