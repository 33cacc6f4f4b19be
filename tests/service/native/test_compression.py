"""The native API takes and gives gzip and deflate, within the limits of bodies and memory."""

import gzip
import json
import shutil
import zlib

import numpy as np
import pytest

from tests.support.application import running
from tests.support.attending import post
from tests.support.language_model import write_language_model

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
COMPRESS = {"gzip": gzip.compress, "deflate": zlib.compress}
WBITS = {"gzip": 31, "deflate": 15}
ROWS = np.random.default_rng(3).normal(size=(40, 8)).astype("f").tolist()
BODY = json.dumps({"query": ROWS, "key": ROWS, "value": ROWS}).encode()
PATH = "/v1/attention/scaled_dot_product"


@pytest.fixture(scope="module")
def small(two_blocks, tmp_path_factory):
    """An application with a block and a language model that takes small bodies."""
    folder = tmp_path_factory.mktemp("texts")
    shutil.copytree(two_blocks / "dot_product", folder / "dot_product")
    write_language_model(folder / "lm" / "1", limit=None)
    with running(folder, max_body_bytes=100_000) as client:
        yield client


@pytest.mark.parametrize("encoding", COMPRESS)
def test_a_compressed_body_is_answered_as_a_plain_one(client, encoding):
    plain = post(client, "scaled_dot_product", BODY)
    for _ in range(3):  # one connection sends the same head again
        packed = post(client, "scaled_dot_product", COMPRESS[encoding](BODY), **{"Content-Encoding": encoding})
        assert (packed.status_code, packed.content) == (200, plain.content)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [("gzip", "gzip"), ("deflate", "deflate"), ("gzip, deflate, br", None), ("identity", None), ("br", None)],
)
def test_an_answer_is_compressed_when_one_encoding_is_named(client, accept, expected):
    plain = post(client, "scaled_dot_product", BODY, **{"Accept-Encoding": "identity"}).content
    headers = {"Accept-Encoding": accept, "Content-Type": "application/json"}
    for _ in range(2):
        with client.stream("POST", PATH, content=BODY, headers=headers) as response:
            content = b"".join(response.iter_raw())
        assert response.headers.get("content-encoding") == expected
        assert int(response.headers["content-length"]) == len(content)
        assert (zlib.decompress(content, WBITS[expected]) if expected else content) == plain
        assert (len(content) < len(plain)) == bool(expected)


def test_a_short_answer_and_an_error_are_plain(client):
    for body in ({"query": [[1]], "key": [[1]], "value": [[1]]}, {"query": [[1]]}):
        response = post(client, "scaled_dot_product", body, **{"Accept-Encoding": "gzip"})
        assert "content-encoding" not in response.headers


BODIES = {
    "/v1/attention/dot_product": ({"query": [[1]], "key": [[1]], "value": [[1]]}, 200),
    "/v1/text/lm": ({"text": "the cat sat"}, 200),
    "/v1/tokenize/lm": ({"text": "the cat sat"}, 200),
    "/v1/memories": ({"key": [[1]], "value": [[1]]}, 201),
}


@pytest.mark.parametrize("path", BODIES)
def test_every_body_may_be_compressed_within_bounds(small, path):
    body, status = BODIES[path]
    content, headers = json.dumps(body).encode(), {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    taken = small.post(path, content=gzip.compress(content), headers=headers)
    assert taken.status_code == status, taken.text
    bomb = small.post(path, content=gzip.compress(content + b" " * 50_000_000), headers=headers)
    assert bomb.status_code == 413
    assert "the decompressed body exceeds the maximum allowed" in bomb.json()["detail"]
    whole = gzip.compress(content)
    ends = "unexpected end of the gzip body"
    for broken, said in (
        (content, "invalid gzip data"),
        (whole[:-6], ends),
        (whole + b"more", "after the end"),
        (b"", ends),
    ):
        refused = small.post(path, content=broken, headers=headers)
        assert (refused.status_code, said in refused.json()["detail"]) == (400, True)
    unknown = small.post(path, content=content, headers={**headers, "Content-Encoding": "zstd"})
    assert (unknown.status_code, unknown.headers["accept-encoding"]) == (415, "gzip, deflate")
    assert small.post(path, json=body).status_code == status


def test_tokens_are_compressed_too(small):
    body = {"text": ["the cat sat on the mat"] * 30}
    plain = small.post("/v1/tokenize/lm", json=body, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    for path in ("/v1/tokenize/lm", "/v1/text/lm"):
        packed = small.post(path, json=body, headers={"Accept-Encoding": "gzip"})
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.json()["tokens"] == plain.json()["tokens"]


def test_a_memory_in_binary_may_be_compressed(small):
    key = np.arange(6, dtype="<f4").reshape(3, 2)
    tensor = {"shape": [3, 2], "dtype": "float32", "binary_data_size": key.nbytes}
    content = json.dumps({"key": tensor, "value": tensor}).encode()
    body = content + key.tobytes() * 2
    headers = {"Inference-Header-Content-Length": str(len(content))}
    plain = small.post("/v1/memories", content=body, headers=headers)
    packed = small.post("/v1/memories", content=gzip.compress(body), headers={**headers, "Content-Encoding": "gzip"})
    assert (plain.status_code, packed.status_code) == (201, 201)
    assert packed.json()["content"] == plain.json()["content"]
