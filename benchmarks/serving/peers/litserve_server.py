"""LitServe with an API for each model: nested lists in, orjson out; two HTTP and two inference processes."""

import os
from typing import Any

import litserve
import numpy as np
import orjson
from sessions import NAMES, open_session
from starlette.responses import Response


class Attention(litserve.LitAPI):
    def __init__(self, name: str) -> None:
        super().__init__(api_path=f"/{name}")
        self.name = name

    def setup(self, _device: str) -> None:
        self.session = open_session(self.name)

    def decode_request(self, request: dict[str, Any]) -> dict[str, np.ndarray]:
        return {name: np.asarray(rows, np.float32) for name, rows in request.items()}

    def predict(self, x: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(None, x), strict=True))

    def encode_response(self, output: dict[str, np.ndarray]) -> Response:
        arrays = {name: np.ascontiguousarray(array) for name, array in output.items()}
        return Response(orjson.dumps(arrays, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


if __name__ == "__main__":
    litserve.LitServer([Attention(name) for name in NAMES], accelerator="cpu", workers_per_device=2, timeout=120).run(
        host="127.0.0.1",
        port=int(os.environ["BENCH_PORT"]),
        num_api_servers=2,
        generate_client_file=False,
        log_level="warning",
        access_log=False,
    )
