"""404 and 405: there is no such model, version or URL, or not with this method."""

import pytest

from tests.support.v2 import ADD, error, infer

UNKNOWN = "Request for unknown model: 'nothing' is not found"
ON_EVERY_ROUTE = ["", "/ready", "/config", "/stats", "/trace/setting"]


@pytest.mark.parametrize("route", ON_EVERY_ROUTE)
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


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v2/models/adder/infer"), ("POST", "/v2"), ("DELETE", "/v2/models/adder"), ("PUT", "/v2/logging")],
)
def test_405(server, method, path):
    error(server.request(method, path), 405, "Method Not Allowed")
