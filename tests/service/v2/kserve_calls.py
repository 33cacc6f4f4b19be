"""Run by the Python that has KServe: its InferenceRESTClient against the address given; prints what it got as JSON."""

import asyncio
import json
import sys

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput

ONES = np.ones((1, 1, 2, 2), np.float32)


def request(binary: bool, outputs: list[str], **parameters) -> InferRequest:
    inputs = []
    for name in ("query", "key", "value"):
        inputs.append(InferInput(name, list(ONES.shape), "FP32"))
        inputs[-1].set_data_from_numpy(ONES, binary_data=binary)
    wanted = [RequestedOutput(name, {"binary_data": binary}) for name in outputs]
    return InferRequest("scaled_dot_product", inputs, "one", parameters=parameters, request_outputs=wanted)


async def main(url: str) -> dict:
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    said = {
        "live": await client.is_server_live(url),
        "ready": await client.is_server_ready(url),
        "model ready": await client.is_model_ready(url, "scaled_dot_product"),
        "nothing ready": await client.is_model_ready(url, "nothing"),
    }
    for name, binary in (("json", False), ("binary", True)):
        answer = await client.infer(url, request(binary, ["weights", "output"], is_causal=True), "scaled_dot_product")
        said[name] = {of.name: of.as_numpy().tolist() for of in answer.outputs}
        said[f"{name} id"] = answer.id
    plain = {"inputs": [of.to_dict() for of in request(False, []).inputs], "outputs": [{"name": "output"}]}
    answer = await client.infer(url, plain, "scaled_dot_product")
    said["dict"] = answer.outputs[0].as_numpy().reshape(-1).tolist()
    try:
        await client.infer(url, request(False, ["nothing"]), "scaled_dot_product")
    except Exception as error:
        said["error"] = str(error)
    await client.close()
    return said


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1]))))
