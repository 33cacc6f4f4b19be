"""404: there is no such model, version or URL. 501: a part of the protocol that is not offered."""

import pytest

from tests.support.v2 import ADD, error, infer

UNKNOWN = "Request for unknown model: 'nothing' is not found"
NO_MEMORY = "shared memory is not supported"


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        *(("GET", f"models/nothing{of}", 404, UNKNOWN) for of in ("", "/ready", "/config", "/stats", "/trace/setting")),
        ("POST", "models/nothing/infer", 404, UNKNOWN),
        ("POST", "models/adder/versions/9/infer", 404, "Request for unknown model: 'adder' version 9 is not found"),
        ("GET", "models/adder/versions/9/ready", 404, "'adder' version 9 is not found"),
        ("GET", "models/adder/versions/99999999999999999999999", 404, ""),
        ("POST", "repository/models/nothing/load", 404, "failed to load 'nothing', failed to poll"),
        *(("GET", path, 404, "Not Found") for path in ("nothing", "models/adder/infer/x")),
        *(("GET", f"models/adder/versions/{of}", 404, "Not Found") for of in ("1a", "-1")),
        *(
            ("POST", f"repository/other/{of}", 501, "expected an empty repository name")
            for of in ("index", "models/adder/load")
        ),
        ("POST", "repository/other/models/adder/unload", 501, "expected an empty repository name"),
        ("POST", "models/nothing/trace/setting", 404, UNKNOWN),
        ("POST", "trace/setting", 501, "tracing is not supported"),
        *(("POST", f"{of}sharedmemory/region/r/register", 501, NO_MEMORY) for of in ("system", "cuda")),
    ],
)
def test_what_is_not_there_or_not_offered(server, method, path, status, said):
    error(server.request(method, f"/v2/{path}", json={"trace_file": "x"}), status, said)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
def test_501_an_unknown_encoding(server, encoding):
    response = infer(server, "adder", ADD, **{"Content-Encoding": encoding})
    error(response, 501, f"Content-Encoding '{encoding}' is not supported")
    assert response.headers["accept-encoding"] == "gzip, deflate"
