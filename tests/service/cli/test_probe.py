"""``heed probe``: its exit status is that of the readiness route, and it imports few modules."""

import socket
import ssl

import pytest

from tests.support.probing import probe
from tests.support.server import started
from tests.support.waiting import until


@pytest.mark.parametrize("host", ["", "127.0.0.1", "0.0.0.0"])
def test_ready_and_draining(models, tmp_path, host):
    with started(models, tmp_path / "log", "--workers", "1", "--drain-seconds", "30") as service:
        ready = probe(service.port, HEED_HOST=host)
        assert (ready.returncode, ready.stdout.split()[0]) == (0, "200")
        modules, *heavy = ready.stdout.split()[1:]
        assert int(modules) < 250
        assert not heavy
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


def test_the_monitoring_port_is_asked_first(models, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monitored = {"HEED_MONITORING_PORT": str(port)}
    with started(models, tmp_path / "log", "--workers", "1", "--monitoring-port", str(port)) as service:
        until(lambda: probe(1, **monitored).stdout.split()[0] == "200")  # it hears of it at the next tick
        assert probe(1, "--port", str(service.port), **monitored).returncode == 0, "the flag takes precedence"
        assert probe(service.port, HEED_MONITORING_PORT="0").returncode == 0, "0 means that there is none"
        assert probe(service.port, HEED_MONITORING_PORT="1").returncode == 1


def test_nobody_there():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        found = probe(taken.getsockname()[1])
    assert found.returncode == 1
    assert "connection refused" in found.stderr


def test_flags_win_over_variables(models, tmp_path):
    nowhere = {"HEED_HOST": "127.0.0.2", "HEED_PORT": "1"}
    with started(models, tmp_path / "log", "--workers", "1") as service:
        for host in ("127.0.0.1", "0.0.0.0", "localhost"):
            assert probe(None, "--host", host, "--port", str(service.port), **nowhere).returncode == 0
        assert probe(None, f"--port={service.port}", "--host", "127.0.0.1", **nowhere).returncode == 0
        assert probe(service.port, "--port", "1").returncode == 1


def test_flags_of_tls(models, tmp_path, certificate):
    flags = ["--tls-certificate", f"{certificate}/certificate"]
    trust = ssl.create_default_context(cafile=certificate / "certificate")
    key = ["--tls-key", f"{certificate}/key"]
    with started(models, tmp_path / "log", *flags, *key, "--workers", "1", trust=trust) as service:
        assert probe(None, "--port", str(service.port), *flags).returncode == 0
        assert probe(None, "--port", str(service.port)).returncode == 1


def test_every_interface_of_ipv6():
    """``::`` is asked at ``::1``."""
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::1", 0))
        found = probe(None, "--host", "::", "--port", str(taken.getsockname()[1]))
    assert (found.returncode, found.stderr.rsplit(":", 2)[0]) == (1, "heed probe: http://[::1]")


def test_help():
    found = probe(None, "--help")
    assert found.returncode == 0
    assert all(flag in found.stdout for flag in ("--host", "--port", "--tls-certificate"))


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        (["--prot", "8200"], {}, "--prot: there is no such flag; did you mean --port?"),
        (["--por", "8200"], {}, "--por: there is no such flag; did you mean --port?"),
        (["8200"], {}, "'8200': nothing was expected here"),
        (["--port", "x"], {}, "--port: expected a whole number from 1 to 65535, got 'x'"),
        (["--port", "0"], {}, "--port: expected a whole number from 1 to 65535, got '0'"),
        ([], {"HEED_MONITORING_PORT": "80x"}, "--port: expected a whole number from 1 to 65535, got '80x'"),
        ([], {"HEED_PORT": "80x"}, "--port: expected a whole number from 1 to 65535, got '80x'"),
    ],
)
def test_mistakes(flags, environment, message):
    found = probe(None, *flags, **environment)
    assert found.returncode == 2
    assert message in found.stderr
