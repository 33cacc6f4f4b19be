"""Scenario files: what they may say, and what is said of mistakes."""

import pytest

from loadtest.scenario import RequestSpec, ScenarioError, read


def test_read(tmp_path):
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
    ("text", "said"),
    [
        ("", "expected tables [[request]], got nothing"),
        ("[[requests]]", "got requests"),
        ("nonesuch", "Expected '='"),
        ("[[request]]\nmodel = 'x'", "request 1: unknown 'model'; there are block, share"),
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
def test_mistakes(tmp_path, text, said):
    file = tmp_path / "mix.toml"
    file.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        read(file)
    assert said in str(caught.value)
