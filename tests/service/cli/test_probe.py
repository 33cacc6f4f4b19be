"""``heed probe``: its exit status is that of the readiness route, and it imports few modules."""

import ssl

import pytest

from tests.support.probing import probe
from tests.support.server import started
from tests.support.waiting import until

NOWHERE = {"HEED_HOST": "127.0.0.2", "HEED_PORT": "1"}
IMPORTED = {"service", "service.cli", "service.cli.ask", "service.cli.probe"}


def test_ready_and_draining(adder, tmp_path):
    with started(adder, tmp_path / "log", "--drain-seconds", "30") as service:
        for host in ("", "127.0.0.1", "0.0.0.0"):
            ready = probe(service.port, HEED_HOST=host)
            said, modules = ready.stdout.splitlines()
            assert (ready.returncode, said) == (0, f"ready: 200 http://127.0.0.1:{service.port}/v2/health/ready")
            assert set(modules.split()) <= IMPORTED
        service.process.terminate()
        until(lambda: not service.is_ready())
        draining = probe(service.port)
        assert (draining.returncode, draining.stdout[:15]) == (1, "not ready: 503 ")


@pytest.mark.parametrize(
    ("flags", "environment", "status"),
    [
        (["--port", "PORT", "--host", "127.0.0.1"], NOWHERE, 0),
        (["--port=PORT", "--host", "0.0.0.0"], NOWHERE, 0),
        (["--port", "PORT", "--host", "localhost"], NOWHERE, 0),
        (["--port", "1"], {"HEED_PORT": "PORT"}, 1),
        ([], {"HEED_PORT": "1", "HEED_MONITORING_PORT": "PORT"}, 0),
        ([], {"HEED_PORT": "PORT", "HEED_MONITORING_PORT": "1"}, 1),
        ([], {"HEED_PORT": "PORT", "HEED_MONITORING_PORT": "0"}, 0),
        (["--port", "PORT"], {"HEED_MONITORING_PORT": "1"}, 0),
    ],
)
def test_a_flag_wins_over_the_monitoring_port_and_that_over_the_port(
    two_blocks, shared_server, flags, environment, status
):
    port = str(shared_server(two_blocks).port)
    variables = {name: value.replace("PORT", port) for name, value in environment.items()}
    assert probe(None, *(flag.replace("PORT", port) for flag in flags), **variables).returncode == status


def test_tls(adder, tmp_path, certificate):
    flags = ["--tls-certificate", f"{certificate}/certificate"]
    trust = ssl.create_default_context(cafile=certificate / "certificate")
    with started(adder, tmp_path / "log", *flags, "--tls-key", f"{certificate}/key", trust=trust) as service:
        assert probe(service.port).returncode == 1
        assert probe(service.port, *flags).returncode == 0
        assert probe(service.port, HEED_TLS_CERTIFICATE=flags[1]).returncode == 0


def test_every_interface_of_ipv6():
    """``::`` is asked at ``::1``."""
    probed = probe(None, "--host", "::", "--port", "1")
    assert probed.returncode == 1
    assert probed.stderr.startswith("heed probe: http://[::1]:1: ")


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        (["--por", "8200"], {}, "unknown flag --por; did you mean --port?"),
        (["--port", "x"], {}, "--port: expected a whole number from 1 to 65535, got 'x'"),
        ([], {"HEED_MONITORING_PORT": "80x"}, "--port: expected a whole number from 1 to 65535, got '80x'"),
        ([], {"HEED_PORT": "80x"}, "--port: expected a whole number from 1 to 65535, got '80x'"),
    ],
)
def test_mistakes(flags, environment, message):
    probed = probe(None, *flags, **environment)
    assert probed.returncode == 2
    assert message in probed.stderr
