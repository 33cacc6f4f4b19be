"""Run by the Python that has KServe and tritony: a client of one of them against the address given; prints the results
as JSON. Both cannot be imported in one process, as they define the same messages for protobuf."""

import asyncio
import json
import sys
from typing import Any

import numpy as np

ONES = np.ones((1, 1, 2, 2), np.float32)
ROWS = {name: np.repeat(np.arange(10, dtype=np.float32)[:, None], 3, axis=1) for name in ("x", "z")}


async def ask_kserve(url: str) -> dict[str, Any]:
    from kserve import InferenceRESTClient, InferInput, InferRequest
    from kserve.inference_client import RESTConfig
    from kserve.protocol.infer_type import RequestedOutput

    def request(binary: bool, outputs: list[str], **parameters) -> InferRequest:
        inputs = [InferInput(name, list(ONES.shape), "FP32") for name in ("query", "key", "value")]
        for given in inputs:
            given.set_data_from_numpy(ONES, binary_data=binary)
        wanted = [RequestedOutput(name, {"binary_data": binary}) for name in outputs]
        return InferRequest("scaled_dot_product", inputs, "one", parameters=parameters, request_outputs=wanted)

    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    ready = [await client.is_model_ready(url, name) for name in ("scaled_dot_product", "nothing")]
    results = {"ready": [await client.is_server_live(url), await client.is_server_ready(url), *ready]}
    for form in ("json", "binary"):
        asked = request(form == "binary", ["weights", "output"], is_causal=True)
        answer = await client.infer(url, asked, "scaled_dot_product")
        results[form] = {"id": answer.id, **{of.name: of.as_numpy().reshape(-1).tolist() for of in answer.outputs}}
    plain = {"inputs": [of.to_dict() for of in request(False, []).inputs], "outputs": [{"name": "output"}]}
    answer = await client.infer(url, plain, "scaled_dot_product")
    results["dict"] = answer.outputs[0].as_numpy().reshape(-1).tolist()
    try:
        await client.infer(url, request(False, ["nothing"]), "scaled_dot_product")
    except Exception as error:
        results["error"] = str(error)
    await client.close()
    return results


async def ask_tritony(address: str) -> list[np.ndarray]:
    from tritony import InferenceClient

    plain = await asyncio.to_thread(lambda: InferenceClient.create_with("adder", address, protocol="http")(ROWS))
    client = InferenceClient.create_with_asyncio("adder", address, protocol="http")
    try:
        return [plain, await client.aio_infer(ROWS)]
    finally:
        await client.async_close()


if __name__ == "__main__":
    name, address = sys.argv[1:]
    asked = ask_kserve(f"http://{address}") if name == "kserve" else ask_tritony(address)
    print(json.dumps(asyncio.run(asked), default=lambda array: array.tolist()))
