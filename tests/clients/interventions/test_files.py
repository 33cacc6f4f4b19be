"""Files of pictures in sweeps and in the runs of interventions, by the client and the command."""

import json

import numpy as np
import pytest

from heed_client import Client
from heed_client.__main__ import main
from tests.support.media import files
from tests.support.texts import TEXTS

pytestmark = [pytest.mark.extended, pytest.mark.filterwarnings("ignore")]  # those of transformers
PICTURE, OTHER = (files()[name] for name in ("JPEG", "320x240"))
GRID = {"over": ["layers"], "metric": "kl"}


@pytest.fixture(scope="module")
def url(towers, shared_server):
    """The URL of a server of a small CLIP, ``mine``."""
    return shared_server(towers("clip") / "models").url


@pytest.fixture
def paths(tmp_path):
    (tmp_path / "picture.jpg").write_bytes(PICTURE)
    (tmp_path / "other.png").write_bytes(OTHER)
    return tmp_path / "picture.jpg", tmp_path / "other.png"


def test_files_are_sent_from_paths_and_as_bytes(url, paths):
    def values(picture, other):
        source = {"text": TEXTS[1], "images": other, "positions": [1, 2]}
        change = {"at": "hidden", "positions": [1, 2], "from": source}
        with Client(url) as heed:
            return heed.sweep("mine", TEXTS[0], images=[picture, other], intervention=change, **GRID).values

    found = values(*paths)
    assert np.ptp(found) > 0
    np.testing.assert_array_equal(found, values(PICTURE, OTHER))


def test_the_command_sweeps_with_a_picture(url, paths, capsys):
    change = {"at": "hidden", "scale": 0.5}
    flags = ["--text", TEXTS[0], *(f"--image={path}" for path in paths), "--intervene", json.dumps(change)]
    assert main(["mine", "--url", url, *flags, "--sweep", "layers", "--metric", GRID["metric"]]) == 0
    with Client(url) as heed:
        expected = heed.sweep("mine", TEXTS[0], images=[PICTURE, OTHER], intervention=change, **GRID).values
    assert json.loads(capsys.readouterr().out)["values"] == expected.tolist()
