"""Both forms of every path: with and without a version, with and without a trailing slash; never a redirect."""

import pytest

from tests.support.v2 import infer, parts, tensor

GETS = [
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models",
    "/v2/models/stats",
    "/v2/models/adder",
    "/v2/models/adder/ready",
    "/v2/models/adder/config",
    "/v2/models/adder/stats",
    "/v2/models/adder/versions/1",
    "/v2/models/adder/versions/1/ready",
    "/v2/models/adder/versions/1/config",
    "/v2/models/adder/versions/1/stats",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/models/adder/trace/setting",
    "/v2/systemsharedmemory/status",
    "/v2/cudasharedmemory/region/r/status",
]


@pytest.mark.parametrize("path", GETS)
@pytest.mark.parametrize("ending", ["", "/", "?any=query", "/?any=query"])
def test_get(server, path, ending):
    response = server.get(path + ending)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"


POSTS = ["/v2/repository/index", "/v2/trace/setting", "/v2/systemsharedmemory/unregister"]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("ending", ["", "/"])
@pytest.mark.parametrize("body", [b"", b"{}"])
def test_post(server, path, ending, body):
    assert server.post(path + ending, content=body).status_code == 200


@pytest.mark.parametrize("version", ["", "/versions/1", "/versions/2"])
@pytest.mark.parametrize("ending", ["", "/"])
def test_infer(server, version, ending):
    body = {"inputs": [tensor("x", [[0, 0, 0]]), tensor("z", [[0, 0, 0]])]}
    response = server.post(f"/v2/models/adder{version}/infer{ending}", json=body)
    answer, _ = parts(response)
    expected = version[-1:] or "2"  # the highest is served where none is named
    assert answer["model_version"] == expected
    assert answer["outputs"][0]["data"] == [int(expected)] * 3
    for stage in ("decode", "queue", "compute", "encode"):
        assert f"{stage};dur=" in response.headers["server-timing"]


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_the_content_type_does_not_matter(server, media):
    body = {"inputs": [tensor("x", [[0, 0, 0]]), tensor("z", [[0, 0, 0]])]}
    assert infer(server, "adder", body, **{"Content-Type": media}).status_code == 200


def test_the_server(server):
    said = server.get("/v2").json()
    assert said["name"] == "heed"
    assert said["provider"] == "cpu"
    assert set(said["extensions"]) == {
        *("classification", "schedule_policy", "model_configuration", "binary_tensor_data", "parameters", "statistics"),
        *("model_repository", "logging"),
    }
