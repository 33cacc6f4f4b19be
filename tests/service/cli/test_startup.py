"""What the log of a server says at its start."""

import logging
import socket
from contextlib import closing

import pytest

from service.cli.startup import log_settings, log_unknown_variables, log_unprotected_keys
from service.settings import Settings


def test_settings_that_differ(caplog, tmp_path):
    with caplog.at_level(logging.INFO, "heed"):
        log_settings(Settings(model_repository=tmp_path, workers=3, port=8000))
    (record,) = caplog.records
    assert record.message == "settings that differ from their defaults"
    assert (record.model_repository, record.workers) == (tmp_path, 3)
    assert not hasattr(record, "port")
    assert not hasattr(record, "host")


def test_settings_that_are_the_defaults(caplog):
    with caplog.at_level(logging.INFO, "heed"):
        log_settings(Settings())
    assert caplog.messages == ["all settings are the defaults"]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("HEED_PORTT", "unknown setting HEED_PORTT; did you mean HEED_PORT?"),
        ("heed_worker", "unknown setting heed_worker; did you mean HEED_WORKERS?"),
        ("HEED_APIKEY", "unknown setting HEED_APIKEY; did you mean HEED_API_KEY?"),
        ("HEED_QQQQ", "unknown setting HEED_QQQQ; `heed serve --help` lists the settings"),
    ],
)
def test_a_variable_that_is_no_setting(caplog, name, line):
    log_unknown_variables([name, "HEED_PORT", "PATH"])
    assert caplog.messages == [line]
    assert caplog.records[0].levelname == "WARNING"


def test_variables_of_other_parts(caplog):
    kubernetes = ["HEED_SERVICE_HOST", "HEED_SERVICE_PORT_HTTP", "HEED_PORT_8000_TCP_ADDR"]
    log_unknown_variables(["HEED_URL", "HEED_API_KEY", "HEED_TEST_REPOSITORY", "heed_port", "HEEDLESS", *kubernetes])
    assert not caplog.messages


@pytest.mark.parametrize(
    ("host", "is_warned"), [("127.0.0.1", False), ("127.0.0.2", False), ("0.0.0.0", True), ("", True)]
)
def test_keys_without_tls(caplog, tmp_path, host, is_warned):
    (tmp_path / "keys").write_text("secret\n")
    with closing(socket.create_server((host, 0))) as listener:
        for setting in ("api_keys_file", "admin_keys_file"):
            caplog.clear()
            log_unprotected_keys(Settings(**{setting: tmp_path / "keys"}), [listener])
            assert [message[:40] for message in caplog.messages] == [
                "API keys are read without TLS on 0.0.0.0"
            ] * is_warned
        caplog.clear()
        log_unprotected_keys(Settings(), [listener])
        tls = Settings(api_keys_file=tmp_path / "keys").model_copy(update={"tls_certificate": tmp_path / "cert"})
        log_unprotected_keys(tls, [listener])
        assert not caplog.messages
