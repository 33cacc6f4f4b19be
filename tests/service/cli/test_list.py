"""``heed list``: of a folder, of a server, as JSON."""

import json
import os
from pathlib import Path

import pytest

import heed
from service.cli import folder
from service.cli import list as command


@pytest.fixture
def listed(capsys, monkeypatch):
    for name in [name for name in os.environ if name.startswith("HEED_")]:
        monkeypatch.delenv(name)

    def run(*arguments):
        status = command.main([str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    return run


def test_a_folder(listed, repository):
    status, said, _ = listed("--model-repository", repository)
    assert status == 0
    names = [line.split()[0] for line in said.splitlines()]
    assert "scaled_dot_product" in names
    status, said, _ = listed("--model-repository", repository, "--json")
    assert [block["block"] for block in json.loads(said)] == names
    assert json.loads(said)[0].keys() == {"block", "version", "title", "description"}


@pytest.mark.parametrize("as_json", [True, False])
def test_a_server(listed, client, monkeypatch, as_json):
    url = f"{client.base_url.host}:{client.base_url.port}"
    flags = ["--json"] if as_json else []
    status, said, _ = listed("--url", url, *flags)
    assert status == 0
    names = [block["block"] for block in json.loads(said)] if as_json else [x.split()[0] for x in said.splitlines()]
    assert names == [block["block"] for block in client.get("/v1/attention").json()["blocks"]]
    monkeypatch.setenv("HEED_URL", url)
    assert listed(*flags)[1] == said


def test_a_folder_that_is_given_is_read_though_there_is_a_variable_of_a_server(listed, repository, monkeypatch):
    monkeypatch.setenv("HEED_URL", "127.0.0.1:1")
    assert listed("--model-repository", repository)[0] == 0
    monkeypatch.setenv("HEED_MODEL_REPOSITORY", str(repository))
    assert listed()[0] == 0


def test_the_blocks_of_the_wheel(listed, repository, monkeypatch, tmp_path):
    """Where no repository is given and there is none here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder, "BUILTIN", Path(repository))
    assert "scaled_dot_product" in listed()[1]
    (tmp_path / "model_repository").mkdir()
    status, said, wrong = listed()
    assert (status, said) == (1, "")
    assert wrong.endswith(
        "heed list: no blocks in model_repository; `heed export` writes the built-in ones into a folder\n"
    )


def test_no_folder_and_no_wheel(listed, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder, "BUILTIN", tmp_path / "none")
    status, _, wrong = listed()
    assert status == 2
    assert "'model_repository' is no readable folder" in wrong
    assert "`heed export` writes the built-in blocks there; --url asks a server" in wrong


def test_it_is_a_command(repository, capsys):
    assert heed.main(["list", "--model-repository", str(repository)]) == 0
    assert "scaled_dot_product" in capsys.readouterr().out
