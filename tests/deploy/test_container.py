"""The image that HEED_IMAGE names, and docker-compose.yml, for real: what `make container` runs."""

import json
import os
import re
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
import yaml

from tests.support.documents import CURLS, README
from tests.support.http_client import SLOW, Clients, Connection, gauge
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
IMAGE = os.environ["HEED_IMAGE"]

FLAGS = shlex.split(re.search(r"^docker run (.*) heed$", README, re.MULTILINE)[1].replace("--rm ", ""))
MAX_IMAGE_BYTES = 300_000_000  # beyond the base image's


def docker(*arguments: object) -> str:
    done = subprocess.run(["docker", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@dataclass
class Published:
    """A service whose port 8000 is ``port`` of this machine, and the port of its metrics ``metrics_port``."""

    id: str
    port: int
    metrics_port: int

    def is_ready(self) -> bool:
        return says(f"http://127.0.0.1:{self.port}/v2/health/ready") == {"ready": True}

    def inside(self, *command: str) -> subprocess.CompletedProcess:
        return subprocess.run(["docker", "exec", self.id, *command], capture_output=True, text=True)


def says(url: str):
    """The JSON that is answered there; None where nothing is."""
    with suppress(URLError, ConnectionError), urlopen(url, timeout=10) as answer:
        return json.load(answer)


@contextmanager
def running(*flags: object) -> Iterator[Published]:
    """A container of the image, ready."""
    published = [flag.replace(":8000:", "::") for flag in FLAGS]
    start = time.monotonic()
    name = docker("run", "--detach", *published, *flags, IMAGE)
    try:
        port = int(docker("port", name, "8000/tcp").rpartition(":")[2])
        service = Published(name, port, port)
        until(service.is_ready)
        print(f"ready {time.monotonic() - start:.1f} s after docker run {' '.join(map(str, flags))}")
        yield service
    finally:
        docker("rm", "--force", name)


@pytest.fixture(scope="module")
def models(models) -> Path:
    models.chmod(0o755)  # the container's user is another
    return models


@pytest.fixture(scope="module")
def plain() -> Iterator[Published]:
    with running() as published:
        yield published


@pytest.mark.parametrize(("command", "shown"), CURLS)
def test_the_readme_s_commands_answer(plain, command, shown):
    command = command.replace("127.0.0.1:8000", f"127.0.0.1:{plain.port}")
    assert subprocess.check_output(["bash", "-c", command], cwd=ROOT, text=True).strip() == shown.strip()


def test_it_stores_memories(plain):
    body = json.dumps({"key": [[1, 0]], "value": [[1, 2]]}).encode()
    request = Request(f"http://127.0.0.1:{plain.port}/v1/memories", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=10) as answer:
        assert answer.status == 201


def test_there_is_no_root_no_torch_and_no_compiler(plain):
    assert int(plain.inside("id", "-u").stdout) > 0
    assert "No module named 'torch'" in plain.inside("python", "-c", "import torch").stderr
    assert not plain.inside("sh", "-c", "command -v cc gcc c++ clang").stdout


def test_bytecode_is_there_for_all_that_is_imported(plain):
    """Nothing is compiled at start, where nothing could be kept."""
    script = "import service.cli.serve, uvloop, uvicorn.protocols.http.httptools_impl"

    def compiled(*flags: str) -> int:
        verbose = plain.inside("python", "-v", *flags, "-c", script).stderr
        assert len(re.findall("^import ", verbose, re.MULTILINE)) > 500
        return len(re.findall(r"^# code object from [^'\s]+\.py$", verbose, re.MULTILINE))

    assert compiled() == 0
    assert compiled("-Xpycache_prefix=/none") > 500


def test_docker_finds_it_healthy(plain):
    until(lambda: docker("inspect", "--format={{.State.Health.Status}}", plain.id) == "healthy")


def test_it_is_small():
    layers = docker("history", "--human=false", "--format={{.Size}} {{.CreatedBy}}", IMAGE).splitlines()
    ours = layers[: 1 + next(n for n, layer in enumerate(layers) if "opencontainers.image.title" in layer)]
    added = sum(int(layer.partition(" ")[0]) for layer in ours)
    print(f"{added / 1e6:.0f} MB beyond the base image")
    assert 0 < added < MAX_IMAGE_BYTES


def stopping_loses_nothing(published: Published, stop: tuple[object, ...]) -> None:
    """What runs is answered, a long one too; every connection is closed with an answer that says so."""
    answers: list[bytes] = []
    slow = Connection(published.port)
    long = threading.Thread(target=lambda: answers.append(slow.ask("/v2/models/slow/infer", SLOW)))
    with Clients(published, 8, reopen=False) as clients:
        long.start()
        until(lambda: gauge(published.metrics_port, "runs_in_progress"))
        docker(*stop)
    long.join()
    slow.close()
    print(f"{sum(clients.asked)} requests until it ended, {len(clients.failed)} lost")
    assert len(answers) == 1
    assert not clients.failed
    assert docker("inspect", "--format={{.State.ExitCode}}", published.id) == "0"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_loses_no_request(models, workers):
    with running(f"--volume={models}:/model_repository:ro", f"--env=HEED_WORKERS={workers}") as published:
        stopping_loses_nothing(published, ("stop", published.id))


@dataclass
class Composed:
    """The services of docker-compose.yml, at free ports."""

    heed: Published
    prometheus: str
    grafana: str
    compose: tuple[object, ...]


@pytest.fixture(scope="module")
def composed(models, tmp_path_factory) -> Iterator[Composed]:
    """Up and healthy, over ``models``."""
    more = tmp_path_factory.mktemp("compose") / "models.yml"
    volumes = [f"{models}:/model_repository:ro"]
    metrics_port, *ports = free_ports(4)
    heed = {"image": IMAGE, "volumes": volumes, "ports": [f"127.0.0.1:{metrics_port}:9090"]}
    more.write_text(yaml.safe_dump({"services": {"heed": heed}}))
    compose = ("compose", "--project-name=heed-test", "--file=docker-compose.yml", f"--file={more}")
    names = ("HEED_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT")
    with pytest.MonkeyPatch.context() as patch:
        for name, port in zip(names, ports, strict=True):
            patch.setenv(name, str(port))
        try:
            docker(*compose, "up", "--detach", "--no-build", "--wait", "--wait-timeout=120")
            prometheus, grafana = (f"http://127.0.0.1:{os.environ[name]}" for name in names[1:])
            id = docker(*compose, "ps", "--quiet", "heed")
            heed = Published(id, int(os.environ["HEED_PORT"]), metrics_port)
            yield Composed(heed, prometheus, grafana, compose)
        finally:
            docker(*compose, "down", "--volumes")


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def values(url: str, query: str) -> list[str]:
    """What Prometheus, or Grafana's way to it, says of ``query``: the value of each series."""
    answer = says(f"{url}/api/v1/query?query={quote(query)}")
    return [series["value"][1] for series in answer["data"]["result"]]


def test_compose_takes_every_profile():
    docker("compose", "--profile=*", "config", "--quiet")


def test_prometheus_scrapes_it_and_grafana_shows_it(composed):
    until(lambda: values(composed.prometheus, 'up{job="heed"}') == ["1"])
    assert values(composed.prometheus, "heed_models_loaded") == ["2"]
    assert [board["title"] for board in says(f"{composed.grafana}/api/search?type=dash-db")] == ["Heed"]
    assert values(f"{composed.grafana}/api/datasources/proxy/uid/prometheus", "heed_models_loaded") == ["2"]


def test_nothing_runs_as_root(composed):
    for container in docker(*composed.compose, "ps", "--quiet").split():
        users = docker("top", container, "-eo", "uid,pid").split()[2::2]
        assert users
        assert "0" not in users


def test_a_stop_by_compose_loses_no_request(composed):
    stopping_loses_nothing(composed.heed, (*composed.compose, "stop", "heed"))
    docker(*composed.compose, "start", "heed")
    until(composed.heed.is_ready)
