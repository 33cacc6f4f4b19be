"""Both forms of every path: with and without a version, with and without a trailing slash; never a redirect."""

from importlib.metadata import version

import pytest

from tests.support.v2 import infer, parts, tensor

OF_A_MODEL = ("", "/ready", "/config", "/stats")
GETS = [
    *(f"/v2{path}" for path in ("", "/health/live", "/health/ready", "/models", "/models/stats", "/logging")),
    *(f"/v2/models/adder{version}{path}" for version in ("", "/versions/1") for path in OF_A_MODEL),
    *("/v2/trace/setting", "/v2/models/adder/trace/setting"),
    *("/v2/systemsharedmemory/status", "/v2/cudasharedmemory/region/r/status"),
]
ZEROS = {"inputs": [tensor(name, [[0, 0, 0]]) for name in ("x", "z")]}


@pytest.mark.parametrize("path", GETS)
@pytest.mark.parametrize("ending", ["", "/", "?any=query", "/?any=query"])
def test_get(server, path, ending):
    response = server.get(path + ending)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/trace/setting", "/v2/systemsharedmemory/unregister"])
@pytest.mark.parametrize("ending", ["", "/"])
@pytest.mark.parametrize("body", [b"", b"{}"])
def test_post(server, path, ending, body):
    assert server.post(path + ending, content=body).status_code == 200


@pytest.mark.parametrize("version", ["", "/versions/1", "/versions/2"])
@pytest.mark.parametrize("ending", ["", "/"])
def test_infer(server, version, ending):
    response = server.post(f"/v2/models/adder{version}/infer{ending}", json=ZEROS)
    answer, _ = parts(response)
    expected = version[-1:] or "2"  # the highest is served where none is named
    assert answer["model_version"] == expected
    assert answer["outputs"][0]["data"] == [int(expected)] * 3
    for stage in ("decode", "queue", "compute", "encode"):
        assert f"{stage};dur=" in response.headers["server-timing"]


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_the_content_type_does_not_matter(server, media):
    assert infer(server, "adder", ZEROS, **{"Content-Type": media}).status_code == 200


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("health/live", {"live": True}),
        ("health/ready", {"ready": True}),
        ("models/adder/ready", {"name": "adder", "ready": True}),
        ("models/adder/versions/1/ready", {"name": "adder", "ready": True}),
    ],
)
def test_health(server, path, expected):
    assert server.get(f"/v2/{path}").json() == expected


def test_the_server(server):
    said = server.get("/v2").json()
    assert said["name"] == "heed"
    assert said["version"] == version("heed-attention")
    assert said["provider"] == "cpu"
    assert set(said["extensions"]) == {
        *("classification", "schedule_policy", "model_configuration", "binary_tensor_data", "parameters", "statistics"),
        *("model_repository", "logging"),
    }
