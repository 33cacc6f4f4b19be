"""What the command is asked: flags as the documentation shows them, scenario files, conditions of failure."""

import re
import shlex
from pathlib import Path

import pytest

from loadtest import options
from loadtest.measurement.outcome import Level
from loadtest.measurement.thresholds import parse, violations
from loadtest.requests.scenario import RequestSpec, ScenarioError, read

PAGE = (Path(__file__).parents[2] / "docs" / "load_testing.md").read_text()
SHOWN = re.findall(r"^heed loadtest (.*)$", PAGE + options.EPILOG, re.MULTILINE)
assert len(SHOWN) >= 6
RESULT = {"level": "8 connections", "p99": 12.0, "rate": 900.0, "failed": 0.002, "max": None, "steady": False,
          "bottleneck": False, "notes": ["not steady: x"]}  # fmt: skip


@pytest.mark.parametrize("command", SHOWN)
def test_what_is_shown(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mix.toml").write_text(re.search(r"```toml\n(\[\[request.*?)```", PAGE, re.DOTALL)[1])
    parsed, asked = options.parse(shlex.split(command))
    assert parsed.levels
    assert len(asked) == (2 if "mix.toml" in command else 1)


def test_flags():
    flags = ["--block", "linear", "--size", "m=1,2", "--shape", "query=1,3", "--set", "is_causal=true", "--set", "x=y"]
    parsed, (ask,) = options.parse([*flags, "--rate", "10,0.5", "--header", "Authorization: Bearer a:b"])
    assert parsed.levels == [Level(rate=10), Level(rate=0.5)]
    assert parsed.header == [("Authorization", "Bearer a:b")]
    assert ask.sizes == {"m": [1, 2]}
    assert ask.shapes == {"query": [1, 3]}
    assert ask.parameters == {"is_causal": True, "x": "y"}


def test_variables_are_defaults(monkeypatch, capsys):
    monkeypatch.setenv("HEED_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("HEED_API_KEY", "a key")
    parsed, _ = options.parse([])
    assert (parsed.url, parsed.header) == ("http://127.0.0.1:1", [("Authorization", "Bearer a key")])
    parsed, _ = options.parse(["http://127.0.0.1:2", "--header", "AUTHORIZATION: Basic x"])
    assert (parsed.url, parsed.header) == ("http://127.0.0.1:2", [("AUTHORIZATION", "Basic x")])
    monkeypatch.setenv("HEED_API_KEY", "a\nb")
    with pytest.raises(SystemExit):
        options.parse([])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rate", "nan"], "expected a number above 0"),
        (["--concurrency", "1,x"], "expected a whole number of at least 1, got 'x'"),
        (["--header", "x"], "expected NAME:VALUE"),
        (["--header", "x: \n"], "expected printable ASCII"),
        (["--fail-if", "ratio<1"], "--fail-if: a ratio requires --compare or --memory"),
        (["--memory", "--compare", "http://x"], "give only one of them"),
        (["--cacert", "README.md", "https://127.0.0.1:1"], "--cacert: README.md: "),
        (["--cacert", "nofile", "https://127.0.0.1:1"], "--cacert: nofile: "),
    ],
)
def test_wrong_flags(flags, message, capsys, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    with pytest.raises(SystemExit) as ended:
        options.parse(flags)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_scenario(tmp_path):
    file = tmp_path / "mix.toml"
    file.write_text(
        '[[request]]\nblock = "linear"\nshare = 3\nsizes = { m = [1, 2] }\n'
        '[[request]]\npath = "/x"\nbody = "b.json"\nheaders = { X = "1" }\n'
    )
    assert read(file) == [
        RequestSpec("linear", share=3, sizes={"m": [1, 2]}),
        RequestSpec(path="/x", body=tmp_path / "b.json", headers={"X": "1"}),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected tables [[request]], got nothing"),
        ("[[requests]]", "got requests"),
        ("nonesuch", "Expected '='"),
        ("[[request]]\nmodel = 'x'", "request 1: unknown 'model'; expected block, share"),
        ("[[request]]\n[[request]]\nshare = 'x'", "request 2: share: expected float, got 'x'"),
        ("[[request]]\nshare = true", "share: expected float"),
        ("[[request]]\nshare = 0", "share: expected more than 0"),
        ("[[request]]\napi = 'v3'", "api: expected native, v2, got 'v3'"),
        ("[[request]]\nbody = 'b.json'", "path and body must be given together"),
        ("[[request]]\nsizes = { m = 0 }", "sizes: m: expected whole numbers, got 0"),
        ("[[request]]\nsizes = { m = [] }", "sizes: m: expected whole numbers"),
        ("[[request]]\nshapes = { x = 'y' }", "shapes: x: expected whole numbers"),
        ("[[request]]\nsizes = 3", "sizes: expected dict, got 3"),
    ],
)
def test_wrong_scenarios(tmp_path, text, message):
    file = tmp_path / "mix.toml"
    file.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        read(file)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "violation"),
    [
        ("p99>50ms", None),
        ("p99>10ms", "12ms"),
        ("p99 > 11999us", "12,000us"),
        ("p99>0.02s", None),
        ("rate<1000/s", "900/s"),
        ("failed>0.1%", "0.2%"),
        ("failed>0.2%", None),
        ("max>1s", "nothing was measured"),
        ("unsteady", "not steady: x"),
        ("bottleneck", None),
        ("ratio<0.95", "0.9"),
    ],
)
def test_conditions(text, violation):
    found = violations([parse(text)], [RESULT], {"8 connections": {"rate": {"median": 0.9}}})
    assert found == ([f"8 connections: {text}: {violation}"] if violation else [])


@pytest.mark.parametrize("text", ["p99>50", "p98>1ms", "rate>5ms", "p99=1ms", "", "failed>1", "ratio<1%", "p99>-1ms"])
def test_wrong_conditions(text):
    with pytest.raises(ValueError, match="expected a condition such as"):
        parse(text)
