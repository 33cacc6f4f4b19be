"""Streams of generated tokens, on real servers: how many there are, and their times."""

import pytest

from loadtest import options
from tests.loadtest.conftest import body_of

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
FLAGS = ["--block", "gpt", "--generate", 5, "--seconds", 1]


@pytest.mark.parametrize("prompt", [["--size", "n=8"], ["--set", "text=the cat sat", "--set", "temperature=1"]])
def test_tokens_are_counted_and_timed(generating, shared_server, measure, tmp_path, capsys, prompt):
    url, report = shared_server(generating / "models", "--workers", "1").url, tmp_path / "report.html"
    document = measure(url, *FLAGS, *prompt, "--concurrency", "1,2", "--report", report)
    for result, connections in zip(document["results"], (1, 2), strict=True):
        found = result["generation"]
        assert not result["errors"]
        # Those of the requests that were in progress at both ends are counted in part.
        assert abs(found["tokens"] - 5 * result["requests"]) <= 5 * connections
        assert found["rate"] == pytest.approx(found["tokens"] / result["seconds"])
        for times in (found["first_token"], found["per_token"]):
            assert 0 < times["p50"] <= times["p90"] <= times["p99"]
    (request,) = document["requests"]
    assert (request["name"], request["path"]) == ("gpt, generate 5", "/v1/generate/gpt")
    assert request["shapes"] == ([{"input_ids": [1, 8]}] if prompt[0] == "--size" else [])
    printed = capsys.readouterr().out
    assert "tokens/s first p50 ms first p90 ms first p99 ms each p50 ms each p90 ms each p99 ms" in printed
    assert "<h2>Generated tokens</h2>" in body_of(report)


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--generate", "0"], "--generate: expected a whole number of at least 1"),
     (["--generate", "3", "--api", "v2"], "generate: expected a whole number of at least 1, with the native API")],
)  # fmt: skip
def test_what_is_not_accepted(capsys, flags, message):
    with pytest.raises(SystemExit):
        options.parse(flags)
    assert message in capsys.readouterr().err


def test_a_model_that_does_not_generate_says_why(url, measure, capsys):
    assert measure(url, "--block", "dot_product", "--generate", 3, status=2) is None
    assert "cannot generate: it was exported without the graphs of steps" in capsys.readouterr().err
