"""The commands that the documentation and ``--help`` show are understood; mistakes are explained."""

import re
import shlex
from pathlib import Path

import pytest

from loadtest import options
from loadtest.outcome import Level

PAGE = (Path(__file__).parents[2] / "docs" / "load_testing.md").read_text()
SHOWN = re.findall(r"^heed loadtest (.*)$", PAGE + options.EPILOG, re.MULTILINE)
assert len(SHOWN) >= 6


@pytest.mark.parametrize("command", SHOWN)
def test_what_is_shown(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mix.toml").write_text(re.search(r"```toml\n(\[\[request.*?)```", PAGE, re.DOTALL)[1])
    parsed, asked = options.parse(shlex.split(command))
    assert parsed.levels
    assert len(asked) == (2 if "mix.toml" in command else 1)


def test_what_is_asked():
    flags = ["--block", "linear", "--size", "m=1,2", "--shape", "query=1,3", "--set", "is_causal=true", "--set", "x=y"]
    parsed, (ask,) = options.parse([*flags, "--rate", "10,0.5", "--header", "Authorization: Bearer a:b"])
    assert parsed.levels == [Level(rate=10), Level(rate=0.5)]
    assert parsed.header == [("Authorization", "Bearer a:b")]
    assert ask.sizes == {"m": [1, 2]}
    assert ask.shapes == {"query": [1, 3]}
    assert ask.parameters == {"is_causal": True, "x": "y"}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--rate", "nan"], "expected a number above 0"),
        (["--concurrency", "1,x"], "expected a whole number from 1, got 'x'"),
        (["--header", "x"], "expected NAME:VALUE"),
        (["--header", "x: \n"], "expected printable ASCII"),
        (["--fail-if", "ratio<1"], "a ratio needs --compare or --memory"),
        (["--memory", "--compare", "http://x"], "choose one"),
    ],
)
def test_mistakes(flags, said, capsys):
    with pytest.raises(SystemExit) as ended:
        options.parse(flags)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
