"""501: a part of the protocol that is not offered here."""

import pytest

from tests.support.v2 import ADD, error, infer


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
def test_501_an_unknown_encoding(server, encoding):
    response = infer(server, "adder", ADD, **{"Content-Encoding": encoding})
    error(response, 501, f"Content-Encoding '{encoding}' is not supported")
    assert response.headers["accept-encoding"] == "gzip, deflate"


def test_501_another_repository(server):
    for path in ("index", "models/adder/load", "models/adder/unload"):
        error(server.post(f"/v2/repository/other/{path}"), 501, "there is one repository")


def test_501_what_is_not_offered(server):
    error(server.post("/v2/trace/setting", json={"trace_file": "x"}), 501, "tracing is not offered")
    error(server.post("/v2/systemsharedmemory/region/r/register", json={}), 501, "shared memory is not offered")
