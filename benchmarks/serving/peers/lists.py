"""A minimal service in ten lines: FastAPI with defaults, nested lists in pydantic models, .tolist().

``/typed`` also declares the type of its response, so that pydantic's Rust code serializes it.
"""

import os
from typing import Any

import numpy as np
import onnxruntime
from fastapi import FastAPI
from pydantic import BaseModel

Tensor = list[Any]
Rank3 = list[list[list[float]]]
Rank4 = list[Rank3]
app = FastAPI()


class Sdpa(BaseModel):
    query: Rank3
    key: Rank3
    value: Rank3


class SdpaOutput(BaseModel):
    query: Rank4
    key: Rank4
    value: Rank4


class Mha(BaseModel):
    x: Rank3


def serve(name: str, Body: type[BaseModel]) -> None:
    folder = f"{os.environ['BENCH_MODELS']}/{name}"
    if not os.path.isdir(folder):
        return
    session = onnxruntime.InferenceSession(f"{folder}/1/model.onnx", providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def attend(body: BaseModel) -> dict[str, Any]:
        arrays = session.run(None, {key: np.array(rows, np.float32) for key, rows in body})
        return {key: array.tolist() for key, array in zip(names, arrays, strict=True)}

    @app.post(f"/{name}")
    def infer(body: Body):  # type: ignore[no-untyped-def, valid-type]
        return attend(body)

    @app.post(f"/typed/{name}")
    def typed(body: Body) -> dict[str, Any]:  # type: ignore[valid-type]
        return attend(body)


serve("sdpa", Sdpa)
serve("sdpa_output", SdpaOutput)
serve("mha", Mha)
serve("mha_output", Mha)
