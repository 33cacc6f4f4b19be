"""Run by the Python that has tritony: its client against the address given; prints what it got as JSON."""

import asyncio
import json
import sys

import numpy as np
from tritony import InferenceClient

ROWS = {name: np.repeat(np.arange(10, dtype=np.float32)[:, None], 3, axis=1) for name in ("x", "z")}


async def with_asyncio(address: str) -> np.ndarray:
    client = InferenceClient.create_with_asyncio("adder", address, protocol="http")
    try:
        return await client.aio_infer(ROWS)
    finally:
        await client.async_close()


if __name__ == "__main__":
    address, way = sys.argv[1:]
    if way == "asyncio":
        found = asyncio.run(with_asyncio(address))
    else:
        found = InferenceClient.create_with("adder", address, protocol="http")(ROWS)
    print(json.dumps(np.asarray(found).tolist()))
