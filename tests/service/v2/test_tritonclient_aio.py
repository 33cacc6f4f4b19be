"""NVIDIA's tritonclient.http.aio, unmodified. It offers br on every call, and unpacks neither metadata nor errors."""

import asyncio

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
        assert (await client.get_server_metadata())["name"] == "heed"
        assert (await client.get_model_metadata("adder"))["platform"] == "onnxruntime_onnx"
        assert (await client.get_model_config("adder"))["backend"] == "onnxruntime"
        assert (await client.get_inference_statistics("adder"))["model_stats"]
        assert len(await client.get_model_repository_index()) > 10
        await client.unload_model("identity_INT8")
        assert not await client.is_model_ready("identity_INT8")
        await client.load_model("identity_INT8")
        assert await client.is_model_ready("identity_INT8")
        flags = dict.fromkeys(("log_info", "log_warning", "log_error"), True)
        before = {"log_file": "", **flags, "log_verbose_level": 0, "log_format": "default"}
        assert await client.get_log_settings() == before
        assert await client.update_log_settings({"log_verbose_level": 3}) == before | {"log_verbose_level": 3}
        assert await client.update_log_settings(before) == before
        assert (await client.update_trace_settings(settings={"trace_level": None}))["trace_level"] == ["OFF"]
        with pytest.raises(InferenceServerException, match="Request for unknown model: 'nothing' is not found"):
            await client.get_model_metadata("nothing")
        with pytest.raises(InferenceServerException, match="missing required input"):
            await client.infer("adder", xz(1)[:1])

    run(address, what)


@pytest.mark.parametrize(("sent", "answered"), [(None, None), ("gzip", "deflate"), ("deflate", "gzip")])
def test_infer(address, sent, answered):
    packing = {"request_compression_algorithm": sent, "response_compression_algorithm": answered}

    async def what(client):
        asked = (client.infer("scaled_dot_product", qkv(), request_id=str(i), **packing) for i in range(20))
        return await asyncio.gather(*asked)

    for i, result in enumerate(run(address, what)):
        assert result.as_numpy("output").shape == (*Q.shape[:-1], 6)
        assert result.get_response()["id"] == str(i)
