"""What each command says of mistakes: what is wrong, where, and what to do.

They stand in mistakes_command_line.txt, in full, below their commands.
``heed`` before a command and before its message is left out there. URL is a server, HERE the folder of the commands.
"""

import shlex
from pathlib import Path

import pytest

import heed

ROOT = Path(__file__).parents[1]
MISTAKES = (ROOT / "tests" / "mistakes_command_line.txt").read_text()
CASES = [
    (command, "\n".join(message))
    for command, *message in (case.splitlines() for case in MISTAKES.strip().removeprefix("$ ").split("\n$ "))
]


@pytest.mark.parametrize(("command", "message"), CASES, ids=[command for command, _ in CASES])
def test_a_mistake(client, monkeypatch, capsys, command, message):
    url = str(client.base_url).rstrip("/")
    monkeypatch.setenv("HEED_URL", url)
    monkeypatch.chdir(ROOT)
    try:
        status = heed.main([url if part == "URL" else part for part in shlex.split(command)])
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    assert status in (1, 2)
    assert said.out == ""
    text = said.err.strip().replace(url, "URL").replace(str(ROOT), "HERE")
    assert text.removeprefix("heed").lstrip(": ") == message


def test_there_are_many():
    assert len(CASES) >= 70
    assert len({command for command, _ in CASES}) == len(CASES)
