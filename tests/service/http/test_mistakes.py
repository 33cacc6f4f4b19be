"""Each mistake of ``mistakes.toml`` is answered as it stands there, however the request comes."""

import gzip
import json
import shutil
import tomllib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.in_process import serving_in_process
from tests.support.language_model import write_language_model

TABLE = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text(encoding="utf-8"))["mistake"]
BLOCKS = ("dot_product", "scaled_dot_product", "self_attention", "multi_head")
LIMITS = {"max_memory_bytes": 20_000_000, "max_body_bytes": 3_000_000, "max_text_bytes": 1000}
GOOD = {"query": [[1, 0], [0, 1]], "key": [[1, 0], [0, 1], [1, 1]], "value": [[1, 0], [0, 1], [0.5, 0.5]]}
COMPRESS = {"gzip": gzip.compress, "deflate": zlib.compress}


@pytest.fixture(scope="module")
def five_models(repository, tmp_path_factory) -> Iterator[httpx.Client]:
    """A client of a server with ``bert``, which has a tokenizer, and four blocks."""
    folder = tmp_path_factory.mktemp("five models")
    write_language_model(folder / "bert" / "1", "BertModel", "right", 16)
    for name in BLOCKS:
        shutil.copytree(repository / name, folder / name)
    with (
        serving_in_process(folder, **LIMITS) as service,
        httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=60) as client,
    ):
        yield client


def content_of(mistake: dict[str, Any]) -> bytes:
    """The body of a request: its ``body``, or that of a good request after a ``change``."""
    if "change" not in mistake:
        content = mistake.get("body", "").encode("latin-1") * mistake.get("repeat", 1)
    else:
        good = {name: value for name, value in GOOD.items() if name not in mistake.get("without", ())}
        content = json.dumps(good | json.loads(mistake["change"])).encode()
    return COMPRESS[mistake["encode"]](content) if "encode" in mistake else content


def send(client: httpx.Client, mistake: dict[str, Any], in_chunks: bool = False) -> httpx.Response:
    method, path = mistake["request"].split(" ")
    content = content_of(mistake)
    headers = {"Content-Type": "application/json"} | mistake.get("headers", {})
    return client.request(method, path, content=iter([content]) if in_chunks else content, headers=headers)


@pytest.mark.parametrize("mistake", TABLE, ids=[mistake["what"] for mistake in TABLE])
def test_it_is_answered_in_full(five_models, mistake):
    ways = [False, False, True] if mistake["request"].startswith("POST") else [False]  # known heads, then no fast path
    for in_chunks in ways:
        response = send(five_models, mistake, in_chunks)
        assert response.status_code == mistake["status"], response.text
        assert response.headers.get("allow") == mistake.get("allow")
        if response.request.method == "HEAD":
            assert response.content == b""
            continue
        answer = response.json()
        if in_chunks and "in_chunks" in mistake:
            assert answer.get("error", answer.get("detail")) == mistake["in_chunks"]
        else:
            assert answer.get("error", answer.get("detail")) == mistake["says"]
        assert answer.get("field") == mistake.get("field")


def test_the_table_is_large_and_its_mistakes_differ():
    assert len(TABLE) >= 70
    assert len({mistake["what"] for mistake in TABLE}) == len(TABLE)
    requests = {json.dumps({**mistake, "what": "", "says": ""}, sort_keys=True) for mistake in TABLE}
    assert len(requests) == len(TABLE)
    for api in ("/v1/attention", "/v1/text", "/v1/tokenize", "/v1/memories", "/v2/"):
        assert any(api in mistake["request"] for mistake in TABLE)
