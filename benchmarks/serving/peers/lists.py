"""What one writes in ten lines: FastAPI, nested lists in pydantic models, .tolist(), everything at its default."""

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

    @app.post(f"/{name}")
    def infer(body: Body) -> dict[str, Any]:  # type: ignore[valid-type]
        arrays = session.run(None, {of: np.array(rows, np.float32) for of, rows in body})  # type: ignore[attr-defined]
        return {of: array.tolist() for of, array in zip(names, arrays, strict=True)}


serve("sdpa", Sdpa)
serve("sdpa_output", SdpaOutput)
serve("mha", Mha)
serve("mha_output", Mha)
