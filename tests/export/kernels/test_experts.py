"""The loop over experts in ONNX Runtime: each row is multiplied by the matrix of its expert."""

import numpy as np
import onnx
import pytest
from onnx import parser

from export.kernels.functions import DOMAIN, complete
from export.verification.sessions import session

WEIGHT = {"Experts": [5, 4], "ExpertsTransposed": [4, 5]}


@pytest.mark.parametrize("experts", [[2], [1, 1, 1], [0, 0, 1, 2, 2, 2], [0, 2, 2]], ids=str)
@pytest.mark.parametrize("kernel", WEIGHT)
def test_each_row_has_the_matrix_of_its_expert(kernel, experts):
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 20, "{DOMAIN}": 1]>'
        f"g (float[S, 4] x, int64[S] experts, float[3, {WEIGHT[kernel][0]}, {WEIGHT[kernel][1]}] weight)"
        f"=> (float[S, 5] y) {{ y = {DOMAIN}.{kernel} (x, experts, weight) }}"
    )
    complete(model)
    onnx.checker.check_model(model)
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal(shape, np.float32) for shape in ((len(experts), 4), (3, *WEIGHT[kernel])))
    (y,) = session(model.SerializeToString()).run(None, {"x": x, "experts": np.array(experts), "weight": weight})
    matrices = weight[experts].astype(np.float64)
    exact = np.einsum("si,sio->so" if kernel == "ExpertsTransposed" else "si,soi->so", x, matrices)
    np.testing.assert_allclose(y, exact, rtol=0, atol=8 * np.finfo(np.float32).eps * np.abs(exact).max())
