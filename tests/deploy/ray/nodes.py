"""A real Ray cluster of several nodes on this machine, and ``serve run`` on it."""

import contextlib
import os
import re
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import pytest
import yaml

from tests.support.documents import PAGES, ROOT
from tests.support.waiting import until

COMMAND, NAME = re.search(r"^(serve run (.*))$", PAGES["docs/deployment.md"], re.MULTILINE).groups()
MEMORY = 80 << 20  # bytes of each node's object store
AT_ONCE = 2  # requests that a replica is given at a time
ONE = {"intra_op_threads": 1, "max_concurrent_runs": 1}  # settings of a replica that shares a machine
JSON = {"Content-Type": "application/json"}


class Nodes:
    """A head that holds no replica, and ``count`` nodes with room for one each."""

    def __init__(self, count: int, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self._folder = folder
        self._cluster = Cluster(initialize_head=True, head_node_args={**self._of_one(0), "include_dashboard": False})
        self.nodes: list[Any] = []
        for _ in range(count):
            self.add()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"

    @staticmethod
    def _of_one(cpus: int) -> dict[str, Any]:
        here = {"node_ip_address": "127.0.0.2", "include_log_monitor": False}
        return {"num_cpus": cpus, "object_store_memory": MEMORY, **here}

    def add(self) -> None:
        self.nodes.append(self._cluster.add_node(**self._of_one(1)))

    def serve(self, models: Path, replicas: int | dict[str, Any], **settings: Any) -> None:
        """The documented ``serve run``, with these models, replicas (or autoscaling) and settings in its file."""
        config = yaml.safe_load((ROOT / NAME).read_text())
        config["proxy_location"] = "HeadOnly"
        config["http_options"]["port"] = self.port
        (application,) = config["applications"]
        application["args"] = {"model_repository": str(models), "access_log": "all", **settings}
        (deployment,) = application["deployments"]
        deployment["max_ongoing_requests"] = AT_ONCE
        deployment["health_check_period_s"] = 1
        if isinstance(replicas, int):
            del deployment["autoscaling_config"]
            deployment["num_replicas"] = replicas
        else:
            deployment["autoscaling_config"] = replicas
        written = self._folder / "heed.yaml"
        written.write_text(yaml.safe_dump(config))
        program, *arguments = shlex.split(COMMAND.replace(NAME, str(written)))
        command = [Path(sys.executable).with_name(program), *arguments, "--non-blocking"]
        environment = {**os.environ, "RAY_ADDRESS": self._cluster.address}
        subprocess.run(command, check=True, capture_output=True, env=environment, timeout=120)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=60)

    def status(self) -> Any:
        """Of the application, as Ray Serve tells it."""
        from ray import serve

        return serve.status().applications.get("heed")

    def told(self) -> str:
        """What Ray Serve says of the application and its deployment."""
        status = self.status()
        return "\n".join([status.message, *(of.message for of in status.deployments.values())])

    def serve_running(self, models: Path, replicas: int, **settings: Any) -> None:
        self.serve(models, replicas, **ONE, **settings)
        self.until_running(replicas)

    def until_running(self, replicas: int, seconds: float = 180) -> None:
        """Returns when the application runs on as many replicas, and no others."""

        def is_running() -> bool:
            status = self.status()
            if status is None or status.status != "RUNNING":
                return False
            return status.deployments["Heed"].replica_states == {"RUNNING": replicas}

        until(is_running, seconds)

    def replicas(self, node: Any) -> list[psutil.Process]:
        """The processes of the replicas on a node."""
        return [one for one in self._processes(node) if "ServeReplica" in one.name() + "".join(one.cmdline())]

    def lose(self, node: Any) -> None:
        """All that runs on ``node`` is killed, as if its power went."""
        for process in self._processes(node):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._cluster.remove_node(node, allow_graceful=False)
        self.nodes.remove(node)

    def logged(self) -> dict[str, int]:
        """Request id -> process of the replica that answered, of all requests so far."""
        found = {}
        for log in (self._folder / "ray/session_latest/logs").glob("worker-*.err"):
            pid = int(log.stem.rpartition("-")[2])
            found |= dict.fromkeys(re.findall(r"request_id=(\S+)", log.read_text()), pid)
        return found

    @staticmethod
    def _processes(node: Any) -> list[psutil.Process]:
        (raylet,) = node.all_processes["raylet"]
        top = psutil.Process(raylet.process.pid)
        return [*top.children(recursive=True), top]


class Answer(NamedTuple):
    began: float
    ended: float
    status: int  # 0 if the connection broke
    content: bytes


class Load:
    """``clients`` that post the same request without pause."""

    def __init__(self, nodes: Nodes, clients: int, path: str, content: bytes | str) -> None:
        self.answers: list[Answer] = []
        self._stop = threading.Event()
        self._nodes, self._path, self._content = nodes, path, content
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        until(lambda: len(self.answers) > 5 * len(self._threads))
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def more(self, count: int) -> list[Answer]:
        """``count`` answers or more, to requests that begin from now on."""
        start = time.monotonic()

        def since() -> list[Answer]:
            return [answer for answer in self.answers if answer.began > start]

        until(lambda: len(since()) >= count)
        return since()

    @property
    def failures(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.status != 200]

    def _ask(self) -> None:
        with self._nodes.client() as client:
            while not self._stop.is_set():
                began, status, content = time.monotonic(), 0, b""
                with contextlib.suppress(httpx.TransportError):
                    response = client.post(self._path, content=self._content, headers=JSON)
                    status, content = response.status_code, response.content
                self.answers.append(Answer(began, time.monotonic(), status, content))


@contextmanager
def running(count: int) -> Iterator[Nodes]:
    """A cluster that tells nobody of itself, with a password of its own, which leaves nothing behind.

    Ray reads its environment when it is first imported: no test may do that sooner.
    """
    with tempfile.TemporaryDirectory(prefix="heed", ignore_cleanup_errors=True) as folder:  # sockets' names are short
        os.environ |= {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32),  # read once by a process
            "RAY_TMPDIR": folder,
        }
        ray = pytest.importorskip("ray", reason="no Ray here: make test-ray installs it")
        from ray import serve

        nodes = Nodes(count, Path(folder))
        try:
            ray.init(nodes._cluster.address, namespace="serve", log_to_driver=False)
            yield nodes
        finally:
            serve.shutdown()  # and forget its controller: the next cluster has another
            ray.shutdown()
            nodes._cluster.shutdown()
