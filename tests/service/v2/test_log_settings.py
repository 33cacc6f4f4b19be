"""The logging extension: each level is switched by itself, and what was set is what is answered."""

import io
import logging
from itertools import product

import pytest

from tests.support.application import running

LOG = logging.getLogger("heed")
LEVELS = {
    "log_info": logging.INFO,
    "log_warning": logging.WARNING,
    "log_error": logging.ERROR,
    "log_verbose_level": logging.DEBUG,
}


@pytest.fixture
def client(tmp_path):
    with running(tmp_path, model_control_mode="explicit", ready_when="live") as client:
        yield client


@pytest.fixture
def written():
    """The names of the levels whose lines are written."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    LOG.addHandler(handler)

    def names():
        stream.seek(0)
        stream.truncate()
        for name, level in {**LEVELS, "critical": logging.CRITICAL}.items():
            LOG.log(level, name)
        return set(stream.getvalue().split())

    yield names
    LOG.removeHandler(handler)


def test_what_was_set_is_answered_and_done(client, written):
    for flags in product([True, False], repeat=3):
        for verbose in (0, 2):
            change = {**dict(zip(LEVELS, flags, strict=False)), "log_verbose_level": verbose}
            answer = client.post("/v2/logging", json=change)
            expected = {**change, "log_file": "", "log_format": "default"}
            assert answer.json() == client.get("/v2/logging").json() == expected
            assert written() == {name for name in LEVELS if change[name]} | {"critical"}


def test_what_is_left_out_stays(client, written):
    client.post("/v2/logging", json={"log_warning": False})
    assert client.post("/v2/logging", json={"log_error": None}).json()["log_warning"] is False
    assert client.post("/v2/logging", json={"log_file": "x", "log_warning": True}).status_code == 400
    assert client.get("/v2/logging").json()["log_warning"] is False
    assert "log_warning" not in written()
