"""A foreign graph that cannot run on a request."""

import logging

import numpy as np
import pytest

from service.base.errors import Invalid
from service.model import model as module
from service.model.loader import open_version
from service.ort.provider import Provider
from tests.support import graphs


def test_runs_that_fail_are_logged_at_a_bounded_rate(tmp_path, caplog):
    """Else one client would fill the log: a line has some 300 bytes."""
    graphs.lookup(tmp_path / "lookup" / "1")
    model = open_version(tmp_path / "lookup" / "1", Provider("cpu", "requested"), 1)
    module.UNRUNNABLE.__init__()
    with caplog.at_level(logging.INFO, "heed"):
        for _ in range(200):
            with pytest.raises(Invalid, match="cannot run on these inputs: ids"):
                model.run(model.graphs[-1], {"ids": np.array([[7]])}, [*model.outputs])
    assert 1 <= caplog.text.count("failed on a request") < 20
