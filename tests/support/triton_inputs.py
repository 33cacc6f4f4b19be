"""Inputs as tritonclient has them: of an attention block, and of the adder."""

import numpy as np
import tritonclient.http as triton

RNG = np.random.default_rng(4)
Q, K, V = (RNG.standard_normal(shape, np.float32) for shape in ((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 6)))


def tensors(binary=True, **arrays):
    made = []
    for name, (array, datatype) in arrays.items():
        made.append(triton.InferInput(name, list(array.shape), datatype))
        made[-1].set_data_from_numpy(array, binary_data=binary)
    return made


def qkv(binary=True, **more):
    return tensors(binary, query=(Q, "FP32"), key=(K, "FP32"), value=(V, "FP32"), **more)


def xz(i, binary=True):
    return tensors(binary, x=(np.full((1, 3), i, np.float32), "FP32"), z=(np.full((1, 3), i, np.float32), "FP32"))
