"""``heed probe`` tells by its exit status what readiness probes are told, and imports next to nothing."""

import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.test_access import certificate
from tests.service.test_workers import models, started, until

__all__ = ["certificate", "models"]  # fixtures

ROOT = Path(__file__).parents[2]


def probe(port: int, **environment: str) -> subprocess.CompletedProcess:
    script = "import sys, heed; status = heed.main(); print(len(sys.modules)); sys.exit(status)"
    command = [sys.executable, "-c", script, "probe"]
    environment = {**os.environ, "HEED_PORT": str(port), **environment}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("host", ["", "127.0.0.1", "0.0.0.0"])
def test_ready_and_draining(models, tmp_path, host):
    with started(models, tmp_path / "log", "--workers", "1", "--drain-seconds", "30") as service:
        ready = probe(service.port, HEED_HOST=host)
        assert (ready.returncode, ready.stdout.split()[0]) == (0, "200")
        assert int(ready.stdout.split()[1]) < 250
        service.process.terminate()
        until(lambda: not service.is_ready())
        assert probe(service.port).stdout.split()[0] == "503"
        assert probe(service.port).returncode == 1


def test_tls(models, tmp_path, certificate):
    flags = ["--tls-certificate", f"{certificate}/certificate", "--tls-key", f"{certificate}/key", "--workers", "1"]
    trust = ssl.create_default_context(cafile=certificate / "certificate")
    with started(models, tmp_path / "log", *flags, trust=trust) as service:
        assert probe(service.port, HEED_TLS_CERTIFICATE=f"{certificate}/certificate").returncode == 0
        assert probe(service.port).returncode == 1


def test_nobody_there():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        found = probe(taken.getsockname()[1])
    assert found.returncode == 1
    assert "Connection refused" in found.stderr
