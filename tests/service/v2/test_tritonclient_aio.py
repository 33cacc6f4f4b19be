"""NVIDIA's tritonclient.http.aio, unmodified. It offers br on every call, and unpacks neither metadata nor errors."""

import asyncio

import numpy as np
import pytest
import tritonclient.http.aio as triton
from tritonclient.utils import InferenceServerException

from tests.support.triton_inputs import Q, qkv, xz


def run(address, what):
    async def inside():
        async with triton.InferenceServerClient(address) as client:
            return await what(client)

    return asyncio.run(inside())


def test_everything_but_inference(address):
    async def what(client):
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("adder")
        assert not await client.is_model_ready("nothing")
        assert (await client.get_server_metadata())["name"] == "heed"
        assert (await client.get_model_metadata("adder"))["platform"] == "onnxruntime_onnx"
        assert (await client.get_model_config("adder"))["backend"] == "onnxruntime"
        assert (await client.get_inference_statistics("adder"))["model_stats"]
        assert len(await client.get_model_repository_index()) > 10
        await client.unload_model("identity_INT8")
        assert not await client.is_model_ready("identity_INT8")
        await client.load_model("identity_INT8")
        assert await client.is_model_ready("identity_INT8")
        before = await client.get_log_settings()
        assert await client.update_log_settings({"log_verbose_level": 0}) == before
        assert (await client.update_trace_settings(settings={"trace_level": None}))["trace_level"] == ["OFF"]
        with pytest.raises(InferenceServerException, match="Request for unknown model: 'nothing' is not found"):
            await client.get_model_metadata("nothing")

    run(address, what)


@pytest.mark.parametrize(("sent", "answered"), [(None, None), ("gzip", "deflate"), ("deflate", "gzip")])
def test_infer(address, sent, answered):
    async def what(client):
        return await client.infer(
            "scaled_dot_product",
            qkv(),
            request_id="one",
            request_compression_algorithm=sent,
            response_compression_algorithm=answered,
        )

    result = run(address, what)
    assert result.as_numpy("output").shape == (*Q.shape[:-1], 6)
    assert result.get_response()["id"] == "one"


def test_many_at_once(address):
    async def what(client):
        return await asyncio.gather(*(client.infer("adder", xz(i), "1") for i in range(50)))

    for i, result in enumerate(run(address, what)):
        np.testing.assert_array_equal(result.as_numpy("y"), np.full((1, 3), 2 * i + 1, np.float32))


def test_an_error_is_readable(address):
    async def what(client):
        with pytest.raises(InferenceServerException, match="missing required input"):
            await client.infer("adder", xz(1)[:1])

    run(address, what)
