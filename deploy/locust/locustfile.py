"""Load by Locust: ``locust -f deploy/locust/locustfile.py --host http://127.0.0.1:8000``.

Each user requests scaled dot-product attention, twice as often in JSON as in binary. HEED_BLOCK names another block
with the inputs query, key and value; HEED_M and HEED_D are the number of positions and the width.
"""

import json
import os
from array import array
from random import Random

from locust import FastHttpUser, constant, task

BLOCK = os.environ.get("HEED_BLOCK", "scaled_dot_product")
M, D = int(os.environ.get("HEED_M", "64")), int(os.environ.get("HEED_D", "64"))
NAMES = ("query", "key", "value")

random = Random(0)
TENSORS = {name: [random.gauss(0, 1) for _ in range(M * D)] for name in NAMES}
ROWS = {name: [flat[i : i + D] for i in range(0, M * D, D)] for name, flat in TENSORS.items()}
NATIVE = json.dumps({**ROWS, "is_causal": True}).encode()

INPUTS = [
    {"name": name, "shape": [1, 1, M, D], "datatype": "FP32", "parameters": {"binary_data_size": 4 * M * D}}
    for name in NAMES
]
HEAD = json.dumps({"inputs": INPUTS, "parameters": {"is_causal": True, "binary_data_output": True}}).encode()
BINARY = HEAD + b"".join(array("f", flat).tobytes() for flat in TENSORS.values())


class User(FastHttpUser):
    """Sends the next request as soon as it has the response; ``constant(1)`` would wait a second."""

    wait_time = constant(0)

    @task(2)
    def native(self) -> None:
        self.client.post(f"/v1/attention/{BLOCK}", data=NATIVE, headers={"Content-Type": "application/json"})

    @task(1)
    def binary(self) -> None:
        headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(HEAD))}
        self.client.post(f"/v2/models/{BLOCK}/infer", data=BINARY, headers=headers)
