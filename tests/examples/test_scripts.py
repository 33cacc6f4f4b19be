"""The examples run; each holds its own claims."""

import json
import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

from tests.support.server import serving

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(name, url="", *arguments):
    paths = os.pathsep.join([str(ROOT), str(ROOT / "clients")])
    return subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *arguments],
        env=os.environ | {"HEED_URL": url, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("sentence", "[SEP]"),
        pytest.param("cross_attention", "row 2: 5 of 8", marks=pytest.mark.extended),
        pytest.param("decoding", "token 11: attends to 12", marks=pytest.mark.extended),
        pytest.param("transformers_attention", "layer 2: weights [1, 4, 12, 12]", marks=pytest.mark.extended),
    ],
)
def test_script(client, name, last):
    done = run(name, str(client.base_url))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].strip().startswith(last)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("own_checkpoint", "weights [2, 6, 5, 9]: largest difference from torch"),
        ("stored_prefix", "79 steps: largest difference from one request without a memory"),
    ],
)
def test_script_that_exports(name, shown):
    done = run(name)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


@pytest.mark.extended
def test_search_of_sentences(texts_repository, repository, tmp_path):
    """With a small model of random weights, whose numbers are compared all the same."""
    for folder in (texts_repository / "bert", repository / "scaled_dot_product"):
        (tmp_path / folder.name).symlink_to(folder)
    with serving(tmp_path) as client:
        done = run("search_sentences", str(client.base_url), "--model", "bert")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].startswith("9 sentences, ")
    assert len(done.stdout.splitlines()) == 1 + 3 * 3


@pytest.mark.extended
def test_notebook(client, monkeypatch):
    """Its cells run in order, and it was saved with what they showed."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setenv("HEED_URL", str(client.base_url))
    cells = [cell for cell in json.loads(Path("attention.ipynb").read_text())["cells"] if cell["cell_type"] == "code"]
    names: dict[str, object] = {}
    with matplotlib.rc_context():
        matplotlib.use("agg")
        for cell in cells:
            exec("".join(cell["source"]), names)  # noqa: S102
    names["plt"].close("all")
    names["heed"].close()
    assert sum("image/png" in output.get("data", ()) for cell in cells for output in cell["outputs"]) == 3


def test_every_example_is_run_here():
    tested = {"sentence", "cross_attention", "decoding", "own_checkpoint", "transformers_attention"}
    tested |= {"search_sentences", "stored_prefix"}
    others = {"make_sentence", "who_attends"}  # tested beside the request they make and read
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested | others
    assert [path.name for path in EXAMPLES.glob("*.ipynb")] == ["attention.ipynb"]
