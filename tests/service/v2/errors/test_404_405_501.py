"""404 and 405: there is no such model, version or URL, or not with this method. 501: a part of the protocol that is
not offered."""

import pytest

from tests.support.v2 import ADD, error, infer

UNKNOWN = "Request for unknown model: 'nothing' is not found"


@pytest.mark.parametrize("route", ["", "/ready", "/config", "/stats", "/trace/setting"])
def test_404_an_unknown_model(server, route):
    error(server.get(f"/v2/models/nothing{route}"), 404, UNKNOWN)


def test_404_an_unknown_model_or_version_elsewhere(server):
    error(infer(server, "nothing", ADD), 404, UNKNOWN)
    error(infer(server, "nothing", b"not json"), 404, UNKNOWN)
    error(infer(server, "adder", ADD, 9), 404, "Request for unknown model: 'adder' version 9 is not found")
    error(server.get("/v2/models/adder/versions/9/ready"), 404, "'adder' version 9 is not found")
    error(server.get("/v2/models/adder/versions/99999999999999999999999"), 404)
    error(server.post("/v2/repository/models/nothing/load"), 404, "failed to load 'nothing', failed to poll")


@pytest.mark.parametrize(
    "path", ["/v2/nothing", "/v2/models/adder/versions/1a", "/v2/models/adder/versions/-1", "/v2/models/adder/infer/x"]
)
def test_404_an_unknown_url(server, path):
    error(server.get(path), 404, "Not Found")


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
def test_501_an_unknown_encoding(server, encoding):
    response = infer(server, "adder", ADD, **{"Content-Encoding": encoding})
    error(response, 501, f"Content-Encoding '{encoding}' is not supported")
    assert response.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        *((f"repository/other/{of}", "there is one repository") for of in ("index", "models/adder/load")),
        ("repository/other/models/adder/unload", "there is one repository"),
        ("trace/setting", "tracing is not offered"),
        ("systemsharedmemory/region/r/register", "shared memory is not offered"),
    ],
)
def test_501_what_is_not_offered(server, path, said):
    error(server.post(f"/v2/{path}", json={"trace_file": "x"}), 501, said)
