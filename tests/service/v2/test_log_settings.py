"""The logging extension: each level is switched by itself, and what was set is what is answered."""

import logging
from itertools import product

import pytest

from tests.support.application import running
from tests.support.v2 import error

LOG = logging.getLogger("heed")
LEVELS = {
    "log_info": logging.INFO,
    "log_warning": logging.WARNING,
    "log_error": logging.ERROR,
    "log_verbose_level": logging.DEBUG,
}


@pytest.fixture
def client(tmp_path):
    level, filters = LOG.level, [*LOG.filters]
    with running(tmp_path, model_control_mode="explicit", ready_when="live") as client:
        yield client
    LOG.setLevel(level)
    LOG.filters = filters


@pytest.fixture
def written():
    """Tells the names of the levels whose lines are written."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    LOG.addHandler(handler)

    def names():
        lines.clear()
        for name, level in {**LEVELS, "critical": logging.CRITICAL}.items():
            LOG.log(level, name)
        return set(lines)

    yield names
    LOG.removeHandler(handler)


def test_what_was_set_is_answered_and_done(client, written):
    for values in product([True, False], [True, False], [True, False], [0, 2]):
        change = dict(zip(LEVELS, values, strict=True))
        answer = client.post("/v2/logging", json=change)
        assert answer.json() == client.get("/v2/logging").json() == {**change, "log_file": "", "log_format": "default"}
        assert written() == {name for name in LEVELS if change[name]} | {"critical"}


def test_what_is_left_out_stays(client, written):
    client.post("/v2/logging", json={"log_warning": False})
    assert client.post("/v2/logging", json={"log_error": None}).json()["log_warning"] is False
    error(client.post("/v2/logging", json={"log_file": "x", "log_warning": True}), 400, "neither can be changed")
    assert client.get("/v2/logging").json()["log_warning"] is False
    assert "log_warning" not in written()
