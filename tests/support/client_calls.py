"""Calls of scaled_dot_product by heed_client, natively and in binary, and the data of its pages."""

import json
from typing import Any

import numpy as np

SDPA = "scaled_dot_product"
V1 = "/v1/attention"


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def sdpa(*leading, m=5, n=7):
    shapes = {"query": (m, 8), "key": (n, 8), "value": (n, 3)}
    return {name: drawn(*leading, *shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}


def both(heed, block, **given):
    """The outputs, which are the same to the last bit whichever way they came."""
    heed.asked.clear()
    natively, in_binary = (heed.attend(block, **given, binary=binary) for binary in (False, True))
    assert [asked for asked in heed.asked if "POST" in asked] == [
        f"POST {V1}/{block}",
        f"POST /v2/models/{block}/infer",
    ]
    assert list(natively) == list(in_binary)
    for name, array in natively.items():
        np.testing.assert_array_equal(array, in_binary[name], strict=True)
        assert in_binary[name].flags.writeable
    return dict(in_binary)


def page_data(html: str) -> dict[str, Any]:
    """The data in a page that stands alone."""
    return json.loads(html.partition('id="data">')[2].partition("</script>")[0])
