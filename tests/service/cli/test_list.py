"""``heed list``: of a folder, of a server, as JSON."""

import json
import os

import pytest

from service.cli import folder
from service.cli import list as command

BLOCKS = ["dot_product", "scaled_dot_product"]


@pytest.fixture
def listed(capsys, monkeypatch):
    """``listed(*arguments)``: its exit status, and what it prints to both streams."""
    for name in [name for name in os.environ if name.startswith("HEED_")]:
        monkeypatch.delenv(name)

    def run(*arguments):
        status = command.main([str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    return run


def names(text):
    return [line.split()[0] for line in text.splitlines()]


def test_a_folder(listed, two_blocks):
    status, text, _ = listed("--model-repository", two_blocks)
    assert (status, names(text)) == (0, BLOCKS)
    status, text, _ = listed("--model-repository", two_blocks, "--json")
    assert [block["block"] for block in json.loads(text)] == BLOCKS
    assert json.loads(text)[0].keys() == {"block", "version", "title", "description"}


def test_a_server(listed, two_blocks, shared_server, monkeypatch):
    url = shared_server(two_blocks).url.removeprefix("http://")
    status, text, _ = listed("--url", url)
    assert (status, names(text)) == (0, BLOCKS)
    status, as_json, _ = listed("--url", url, "--json")
    assert [block["block"] for block in json.loads(as_json)] == BLOCKS
    monkeypatch.setenv("HEED_URL", url)
    assert listed() == (0, text, "")


def test_a_folder_that_is_given_is_read_though_there_is_a_variable_of_a_server(listed, two_blocks, monkeypatch):
    monkeypatch.setenv("HEED_URL", "127.0.0.1:1")
    assert listed("--model-repository", two_blocks)[0] == 0
    monkeypatch.setenv("HEED_MODEL_REPOSITORY", str(two_blocks))
    assert listed()[0] == 0


def test_the_blocks_of_the_wheel(listed, two_blocks, monkeypatch, tmp_path):
    """Where no repository is given and there is none here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder, "BUILTIN", two_blocks)
    assert names(listed()[1]) == BLOCKS
    (tmp_path / "model_repository").mkdir()
    status, text, error = listed()
    assert (status, text) == (1, "")
    assert error.endswith(
        "heed list: no blocks in model_repository; `heed export` writes the built-in ones into a folder\n"
    )


def test_no_folder_and_no_wheel(listed, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder, "BUILTIN", tmp_path / "none")
    status, _, error = listed()
    assert status == 2
    assert "'model_repository' is not a readable folder" in error
    assert "`heed export` writes the built-in blocks there; --url asks a server" in error
