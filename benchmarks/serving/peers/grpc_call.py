"""Call Triton over gRPC once, in an environment that has tritonclient[grpc].

usage: python grpc_call.py ADDRESS MODEL FOLDER OUTPUT...

Reads the inputs from FOLDER/inputs.npz; writes the outputs to FOLDER/outputs.npz, and the message that asks for them,
with gRPC's prefix (not compressed, its length), to FOLDER/message.
"""

import sys
from pathlib import Path

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput, service_pb2


def main(address: str, model: str, folder: str, *names: str) -> None:
    inputs = []
    for name, array in np.load(f"{folder}/inputs.npz").items():
        inputs.append(InferInput(name, array.shape, "FP32"))
        inputs[-1].set_data_from_numpy(array)
    outputs = [InferRequestedOutput(name) for name in names]
    result = InferenceServerClient(address).infer(model, inputs, outputs=outputs)
    np.savez(f"{folder}/outputs.npz", **{name: result.as_numpy(name) for name in names})
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.extend(one._get_tensor() for one in inputs)
    request.raw_input_contents.extend(one._get_content() for one in inputs)
    request.outputs.extend(one._get_tensor() for one in outputs)
    content = request.SerializeToString()
    Path(folder, "message").write_bytes(b"\0" + len(content).to_bytes(4, "big") + content)


if __name__ == "__main__":
    main(*sys.argv[1:])
