"""On a real Ray cluster: the plain service's bytes, whatever the replicas; what a lost node costs."""

import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from heed_client.v2 import binary_request
from service.settings import Settings
from tests.deploy.ray.nodes import AT_ONCE, JSON, ONE, Load, Nodes, running
from tests.support import graphs
from tests.support.documents import CURLS, ROOT
from tests.support.http_client import rows_of_512
from tests.support.server import serving
from tests.support.waiting import until

pytestmark = [pytest.mark.extended, pytest.mark.filterwarnings("ignore")]  # the warnings are Ray's own

ITS_OWN = {"date", "server", "connection", "x-request-id", "server-timing"}  # headers of the server and of the moment
SLOW = rows_of_512(16)


@pytest.fixture(scope="module")
def models(repository, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for block in ("scaled_dot_product", "encoder"):
        (folder / block).symlink_to(repository / block)
    graphs.adder(folder / "adder" / "1")
    graphs.slow(folder / "slow" / "1", 200)
    return folder


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with running(4) as nodes:
        yield nodes


def requests() -> Iterator[httpx.Request]:
    """Of every kind: both faces, JSON and binary, small and large, right and wrong."""
    rng = np.random.default_rng(0)
    drawn = {name: rng.standard_normal([2, 3, 5, 8]).astype("f4") for name in ("query", "key", "value")}
    lists = {name: array.tolist() for name, array in drawn.items()}

    def post(path: str, content: bytes | str | dict, **headers: str) -> httpx.Request:
        content = json.dumps(content) if isinstance(content, dict) else content
        return httpx.Request("POST", "http://heed" + path, content=content, headers=headers or JSON)

    def binary(model: str, arrays: dict[str, np.ndarray], **fields) -> httpx.Request:
        headers, pieces = binary_request(arrays, **fields)
        return post(f"/v2/models/{model}/infer", b"".join(pieces), **headers)

    native, v2 = "/v1/attention/scaled_dot_product", "/v2/models/scaled_dot_product/infer"
    tensors = [{"name": n, "shape": a.shape, "datatype": "FP32", "data": a.ravel().tolist()} for n, a in drawn.items()]
    for path in ("/v1/attention", "/v2/models/adder/config", "/openapi.json", "/nowhere"):
        yield httpx.Request("GET", "http://heed" + path)
    yield post(native, {**lists, "is_causal": True, "outputs": ["weights", "scores"], "weights_top_k": 2})
    yield post("/v1/attention/encoder", {"input_ids": [[1, 2, 3, 4]]})
    yield post(v2, {"inputs": tensors, "parameters": {"is_causal": True}})  # with scores, of which some are infinite
    yield post(v2, {"inputs": tensors}, **{"Accept-Encoding": "gzip"})
    yield binary("scaled_dot_product", drawn, outputs=["weights", "output"])
    yield binary("adder", {"x": np.ones([2, 3], "f4"), "z": np.full([2, 3], np.nan, "f4")})
    large = {name: rng.standard_normal([1, 8, 512, 64]).astype("f4") for name in ("query", "key", "value")}
    yield binary("scaled_dot_product", large)
    for wrong in ("{", {**lists, "nobody": 1}, {**lists, "query": [[1], [1, 2]]}):
        yield post(native, wrong)
    yield post(native, lists, **{"Content-Type": "text/csv"})
    yield post(v2, b"x", **{"Content-Encoding": "zstd"})
    yield post("/v2/models/nobody/infer", {"inputs": tensors})
    yield httpx.Request("DELETE", "http://heed" + native)
    yield binary("scaled_dot_product", {**drawn, "key": drawn["key"][:1, :, :0]})


def asked(client: httpx.Client, request: httpx.Request, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """The answer, as it came, but for what belongs to the server and the moment."""
    url = client.base_url.join(request.url.raw_path.decode())
    own = {name: value for name, value in request.headers.items() if name != "host"}
    with client.stream(request.method, url, content=request.read(), headers={**own, **headers}) as response:
        kept = {name: value for name, value in response.headers.items() if name not in ITS_OWN}
        return response.status_code, kept, b"".join(response.iter_raw())


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_the_same_bytes_as_the_plain_service(nodes, models, replicas):
    """From every replica; each answer bears the request's name, and so does the replica's log."""
    flags = [word for name, value in ONE.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    with serving(models, *flags) as plain:
        expected = [(request, asked(plain, request)) for request in requests()]
    assert {status for _, (status, _, _) in expected} >= {200, 400, 404, 405, 415, 422, 501}
    nodes.serve_running(models, replicas)
    times = 6 * replicas
    names = [f"r{replicas}.{turn}.{number}" for number in range(len(expected)) for turn in range(times)]
    with nodes.client() as client, ThreadPoolExecutor(8) as pool:

        def ask(name: str) -> None:
            request, answer = expected[int(name.rpartition(".")[2])]
            assert asked(client, request, **{"X-Request-ID": name}) == answer

        for _ in pool.map(ask, names):
            pass
        own = client.get("/v2", headers={"X-Request-ID": "mine"}).headers.get_list("X-Request-ID")
        (given,) = client.get("/v2").headers.get_list("X-Request-ID")
    assert own == ["mine"]
    until(lambda: nodes.logged().keys() >= {*names, given})
    logged = nodes.logged()
    assert len({logged[name] for name in names}) == replicas


@pytest.mark.parametrize(("command", "shown"), CURLS)
def test_the_commands_of_the_readme_answer_what_is_shown(nodes, models, command, shown):
    nodes.serve_running(models, 2)
    command = command.replace("http://127.0.0.1:8000", nodes.address)
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == shown.strip()


def load(nodes: Nodes, clients: int) -> Load:
    return Load(nodes, clients, "/v2/models/slow/infer", SLOW)


def test_a_lost_node_loses_what_ran_there_and_is_made_good(nodes, models):
    """At most the requests that a replica is given at a time; another replica takes its place by itself."""
    nodes.serve_running(models, 3)
    with load(nodes, 8) as clients:
        node = next(node for node in nodes.nodes if nodes.replicas(node))
        (replica,) = nodes.replicas(node)
        assert replica.pid in nodes.logged().values()
        lost = time.monotonic()
        nodes.lose(node)
        until(lambda: sum(len(nodes.replicas(node)) for node in nodes.nodes) == 3, 60)
        nodes.until_running(3)
        clients.more(50)
    nodes.add()
    assert len(clients.failures) <= AT_ONCE
    assert all(answer.began < lost < answer.ended for answer in clients.failures)


def test_fewer_replicas_lose_nothing(nodes, models):
    """Those that go finish what they have."""
    nodes.serve_running(models, 3)
    with load(nodes, 8) as clients:
        nodes.serve_running(models, 1)
    assert not clients.failures


def test_new_settings_lose_nothing(nodes, models):
    """Not even where one replica is all."""
    nodes.serve_running(models, 1)
    with load(nodes, 4) as clients, nodes.client() as client:
        nodes.serve(models, 1, pages="none", **ONE)
        until(lambda: {client.get("/docs").status_code for _ in range(10)} == {404}, 60)
        nodes.until_running(1)
    assert not clients.failures


def test_replicas_follow_the_load(nodes, models):
    scale = {"min_replicas": 1, "max_replicas": 3, "target_ongoing_requests": 1}
    pace = {"upscale_delay_s": 1, "downscale_delay_s": 3, "metrics_interval_s": 0.5, "look_back_period_s": 2}
    nodes.serve(models, {**scale, **pace}, **ONE)
    nodes.until_running(1)
    with load(nodes, 6) as clients:
        nodes.until_running(3)
    nodes.until_running(1)
    assert not clients.failures


@pytest.mark.parametrize(
    ("wrong", "said"), [({"thread": 1}, "Extra inputs are not permitted"), ({"model_repository": "no"}, "no folder")]
)
def test_a_wrong_setting_is_told_and_the_service_stays(nodes, models, wrong, said):
    nodes.serve_running(models, 1)
    with nodes.client() as client:
        nodes.serve(models, 1, **wrong)
        until(lambda: nodes.status().status == "DEPLOY_FAILED", 90)
        assert said in nodes.told()
        assert client.get("/v2/health/ready").status_code == 200


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"port": 1, "workers": 2}, "port, workers: the server is Ray's"),
        ({"thread": 1}, "Extra inputs are not permitted"),
        ({"intra_op_threads": "many"}, "valid integer"),
        ({"model_control_mode": "explicit"}, "would reach only one replica"),
    ],
)
def test_a_wrong_setting_is_named(nodes, wrong, said):
    from deploy.ray.application import application

    with pytest.raises(ValueError, match=said):
        application(wrong)


def test_the_settings_of_the_server_are_settings(nodes):
    from deploy.ray.application import SERVER_SETTINGS

    assert Settings.model_fields.keys() > SERVER_SETTINGS
