"""The examples run; each holds its own claims."""

import json
import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

from tests.support.documents import ENVIRONMENT, ROOT

EXAMPLES = ROOT / "examples"
EXPORTING = ("own_checkpoint", "stored_prefix")  # whose progress is on standard error


def run(name, url, *arguments):
    command = [sys.executable, EXAMPLES / f"{name}.py", *arguments]
    return subprocess.run(command, env=ENVIRONMENT | {"HEED_URL": url}, capture_output=True, text=True)


SHOWN = {  # a line's beginning
    "sentence": "[SEP]",
    "cross_attention": "row 2: 5 of 8",
    "decoding": "token 11: attends to 12",
    "transformers_attention": "layer 2: weights [1, 4, 12, 12]",
    "own_checkpoint": "weights [2, 6, 5, 9]: largest difference from torch",
    "stored_prefix": "79 steps: largest difference from one request without a memory",
}


@pytest.mark.parametrize(
    "name", [name if name == "sentence" else pytest.param(name, marks=pytest.mark.extended) for name in SHOWN]
)
def test_script(client, name):
    done = run(name, str(client.base_url))
    assert done.returncode == 0, done.stderr
    assert name in EXPORTING or done.stderr == ""
    assert any(line.strip().startswith(SHOWN[name]) for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    "name",
    [
        *("sentence", "cross_attention", "decoding", "search_sentences"),
        pytest.param("transformers_attention", marks=pytest.mark.extended),
    ],
)
def test_without_a_server_it_ends_in_one_line(name):
    done = run(name, "http://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"no answer from http://127.0.0.1:1: .*`heed serve` starts a server\n", done.stderr)


@pytest.mark.extended
def test_search_of_sentences(shared_server, texts_repository, repository, tmp_path_factory):
    """With a small model of random weights, whose numbers are compared all the same."""
    models = tmp_path_factory.mktemp("search")
    for folder in (texts_repository / "bert", repository / "scaled_dot_product"):
        (models / folder.name).symlink_to(folder)
    done = run("search_sentences", shared_server(models).url, "--model", "bert")
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


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore")  # those of transformers
def test_words_are_reversed_and_aligned(tmp_path):
    from transformers import AutoTokenizer, MBartForConditionalGeneration

    done = run("reverse_words", "", str(tmp_path))
    assert done.returncode == 0, done.stderr
    words = ["the", "old", "cat", "sat", "on", "the", "mat"]
    model = MBartForConditionalGeneration.from_pretrained(tmp_path, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer(" ".join(words), return_tensors="pt").input_ids
    answer = model.generate(ids, max_new_tokens=20, output_attentions=True, return_dict_in_generate=True)
    assert tokenizer.decode(answer.sequences[0], skip_special_tokens=True).split() == words[::-1]
    looked = [int(layers[1][0].mean(0)[-1].argmax()) for layers in answer.cross_attentions[: len(words)]]
    assert looked == [*range(len(words))][::-1]


def test_every_example_is_run_here():
    others = {"reverse_words", "search_sentences", "make_sentence", "who_attends"}  # above and in test_sentence.py
    assert {path.stem for path in EXAMPLES.glob("*.py")} == SHOWN.keys() | others
    assert [path.name for path in EXAMPLES.glob("*.ipynb")] == ["attention.ipynb"]


def test_the_table_of_no_response_is_one_line():
    script = [sys.executable, str(EXAMPLES / "who_attends.py")]
    ended = subprocess.run(script, input="", text=True, capture_output=True)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "is the server running?" in ended.stderr
