"""The servers that these tests run in their own process."""

import logging.config

import pytest

from tests.support.app import App


class Handler(logging.Handler):
    """Notes that it was closed, as absl's would close pytest's capture file."""

    closed = False

    def close(self) -> None:
        self.closed = True
        super().close()


def test_they_leave_the_log_handlers_of_the_process_open(served):
    handler = Handler()
    served(App())
    assert not handler.closed


def test_whatever_would_close_them_fails():
    with pytest.raises(pytest.fail.Exception, match="log_config=None"):
        logging.config.dictConfig({"version": 1})
