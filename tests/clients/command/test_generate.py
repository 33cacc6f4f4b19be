"""``heed run --generate``: text as it comes, its heat map, JSON, and what it says of mistakes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

from heed_client import Client
from heed_client.__main__ import main
from heed_client.command.generate import print_text
from heed_client.command.show import SHADES
from heed_client.generation.answer import GeneratedToken
from tests.support.client_calls import page_data
from tests.support.generating import stepping
from tests.support.http_client import gauge
from tests.support.in_process import serving_in_process
from tests.support.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
ROOT = Path(__file__).parents[3]
SAMPLED = {"temperature": 1.5, "seed": 1, "ignore_eos": True}
TEXT = ["--text", "the cat sat", "--temperature", "1.5", "--seed", "1", "--set", "ignore_eos=true"]
PROMPT = ["<s>", "the", "cat", "sat", "</s>"]


@pytest.fixture(scope="session")
def url(generating, shared_server):
    return shared_server(generating / "models", "--workers", "1").url


@pytest.fixture
def run(url, capsys):
    """Runs ``heed run gpt``; returns its status, and what it wrote to both streams."""

    def run_main(*flags, model="gpt"):
        try:
            status = main([model, "--url", url, *map(str, flags)])
        except SystemExit as error:
            status = error.code
        return status, *capsys.readouterr()

    return run_main


@pytest.fixture
def generate(run):
    """Runs it, with 12 tokens behind a text; it is to succeed. Returns what it printed."""

    def run_well(*flags):
        status, printed, wrong = run(*TEXT, "--generate", 12, *flags)
        assert status == 0, wrong
        return printed

    return run_well


@pytest.fixture
def expected(url):
    body = {"text": "the cat sat", "max_new_tokens": 12, "outputs": ["weights"], **SAMPLED}
    return httpx.post(f"{url}/v1/generate/gpt", json=body).json()


def test_the_text_is_printed(generate, expected, monkeypatch):
    assert expected["text"]
    assert generate() == expected["text"] + "\n"
    word = expected["text"].split()[-1]
    assert generate("--stop", word, "--stop", "never") == expected["text"][: expected["text"].index(word)] + "\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    text, empty, ending, *_ = generate().split("\n")
    assert (text, empty) == (expected["text"], "")
    assert ending.startswith("12 tokens (length), the first after ")


def test_a_terminal_gets_no_control_characters(capsys, monkeypatch):
    def of(text):
        return GeneratedToken(1, None, text, (0, 1), -1.0, [], {})

    class Finished:
        generated, finish_reason, first_token_ms, total_ms = [of("")], "eos", 1.0, 1.0

        def __iter__(self):
            return iter([of("a\x1b[31m"), of("\x9b\x0e\x7fb\tc\r\n"), of("é\xa0")])

    print_text(Finished())
    assert capsys.readouterr().out == "a\x1b[31m\x9b\x0e\x7fb\tc\r\né\xa0\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_text(Finished())
    assert capsys.readouterr().out.startswith("a[31mb\tc\né\xa0\n\n1 token (eos), the first after 1 ms\n")


def test_tokens_are_printed_as_they_come_until_it_is_interrupted(generating):
    """The fourth step waits: three tokens are there, the interruption is answered, and the server stops."""
    with serving_in_process(generating / "models") as service, stepping(3) as steps:
        command = [sys.executable, "-m", "heed_client", "gpt", *TEXT, "--generate", "40"]
        process = subprocess.Popen(
            [*command, "--url", f"http://127.0.0.1:{service.port}"], cwd=ROOT, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT / "clients")},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a background job ignores it
        )  # fmt: skip
        assert os.read(process.stdout.fileno(), 100) == b"because"
        process.send_signal(signal.SIGINT)
        printed, wrong = process.communicate(timeout=60)
        assert (process.returncode, printed, wrong) == (130, b"\n", b"")
        until(lambda: gauge(service.port, "requests_in_flight") == 0)
        assert steps.count <= 4  # the fourth may not have begun


@pytest.mark.parametrize(
    ("flags", "chosen", "name"),
    [
        ([], np.s_[:, :], "weights, mean over all layers, mean over all heads"),
        (["--layer", "1", "--head", "2"], np.s_[1:2, 2:3], "weights, layer 1, head 2"),
        (["--heads", "0,3"], np.s_[:, [0, 3]], "weights, mean over all layers, mean over heads 0,3"),
    ],
)
def test_a_heat_map_shows_where_each_token_looked(generate, expected, tmp_path, flags, chosen, name):
    path = tmp_path / "weights.html"
    text, title, *lines = generate("--show", *flags, "--html", path).splitlines()
    assert text == expected["text"]
    assert title.startswith(f"{name}: 0.00 to ")
    rows = [line for line in lines if set(line) & set(SHADES)]
    labels = [token["token"] or str(token["id"]) for token in expected["generated"]]
    assert [row.split()[0] for row in rows] == labels
    assert columns_of(lines) == [*PROMPT, *labels[:-1]]
    weights = np.zeros((12, 16))
    for place, token in enumerate(expected["generated"]):
        weights[place, : len(PROMPT) + place] = np.array(token["weights"])[chosen].mean((0, 1))[0]
    width = max(map(len, labels)) + 1
    levels = [[SHADES.index(cell) for cell in row[width::2]] for row in rows]
    np.testing.assert_allclose(levels, weights / weights.max() * (len(SHADES) - 1), atol=0.51)
    page = page_data(path.read_text())
    assert page["shape"] == [1, 1, 12, 16]
    assert page["about"] == {"model": "gpt", "text": "the cat sat"}


def test_a_narrow_heat_map_has_a_row_for_each_token(generate, expected, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    _, title, *lines = generate("--show").splitlines()
    assert title.endswith(", a cell is the largest of 1 x 3")
    assert sum(bool(set(line) & set(SHADES)) for line in lines) == len(expected["generated"])


def columns_of(lines):
    """The labels of the columns, which stand above the rows from top to bottom."""
    above = [line.ljust(80) for line in lines if not set(line) & set(SHADES)]
    return [label for of in zip(*above, strict=True) if (label := "".join(of).strip())]


@pytest.mark.extended
def test_with_two_stacks_it_shows_where_the_text_was_read(two_stacks, shared_server, capsys):
    url = shared_server(two_stacks, "--workers", "1").url
    flags = ["bart", "--url", url, "--text", "the cat sat", "--generate", "4", "--set", "ignore_eos=true"]
    assert main([*flags, "--show"]) == 0
    _, title, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("cross_weights, mean over all layers, mean over all heads: ")
    assert columns_of(lines) == PROMPT
    body = {"text": "the cat sat", "max_new_tokens": 4, "ignore_eos": True, "decoder_text": "a dog"}
    expected = httpx.post(f"{url}/v1/generate/bart", json=body).json()
    assert main([*flags, "--text-target", "a dog", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["generated"], answer["usage"]) == (expected["generated"], expected["usage"])
    assert answer["usage"]["prompt_tokens"] == 3


def test_json_is_the_answer_of_the_server(generate, run, expected, tmp_path):
    path = tmp_path / "out.json"
    flags = ["--outputs", "weights", "--next-tokens", "2"]
    assert generate("--out", path, *flags) == ""
    answer = json.loads(path.read_text())
    assert answer == json.loads(generate("--json", *flags))
    assert answer["tokens"] == PROMPT
    for name in ("text", "finish_reason", "usage"):
        assert answer[name] == expected[name]
    for token, theirs in zip(answer["generated"], expected["generated"], strict=True):
        np.testing.assert_array_equal(np.float32(token.pop("weights")), np.float32(theirs.pop("weights")))
        assert len(token.pop("next_tokens")) == 2
        assert token == theirs
    status, printed, _ = run(*TEXT, "--text", "a dog", "--generate", 3, "--json")
    assert status == 0
    assert [len(of) for of in json.loads(printed)["generated"]] == [3, 3]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--text", "the", "--generate", "0"], "--generate: expected a whole number of at least 1, got '0'"),
        (["--text", "the", "--generate", "99"], "--generate: expected at most 45, as the model has 48 positions"),
        (["--generate", "3"], "--text: missing"),
        (["--text", "the", "--generate", "3", "--top-k=-1"], "--top-k: expected "),
        (["--text", "the", "--seed", "3"], "--seed: needs --generate"),
        (["--text", "the", "--text", "a", "--generate", "3"], "--text: several texts need --json"),
        (["--text", "the", "--generate", "3", "--outputs", "entropy"], "--outputs: needs --json or --out FILE.json"),
        (["--text", "the", "--generate", "3", "--next-tokens", "3"], "--next-tokens: needs --json or --out FILE.json"),
        (["--text", "the", "--generate", "3", "--out", "a.npz"], "--out a.npz: generated tokens are written as .json"),
        (["--text", "the", "--generate", "3", "--compare", "a.npz", "--show"], "--compare: cannot be combined"),
        (["--text", "the", "--generate", "3", "--show", "--at", "1"], "--at 1: the leading indices"),
        ([], "--input-ids: missing (required); --text takes a text in place of token ids"),
    ],
)
def test_a_mistake_is_named(run, flags, message):
    status, printed, said = run(*flags)
    assert (status, message in said) == (2, True), said
    assert printed == "" or "--at" in flags


def test_the_description_says_whether_it_generates(run, url):
    status, printed, _ = run("--describe")
    assert (status, printed.splitlines()[-1]) == (0, "generates text: --text TEXT --generate N")
    with Client(url) as heed:
        block = heed.describe("gpt")
    assert (block.generate["two_stacks"], block.generate_refused) == (False, None)


@pytest.mark.extended  # it exports the model
def test_the_description_says_why_not(texts_repository, shared_server, capsys):
    url = shared_server(texts_repository, "--workers", "1").url
    assert main(["bert", "--url", url, "--describe"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "does not generate text: BertModel does not generate"


def test_a_model_that_does_not_generate_says_why(shared_server, two_blocks, capsys):
    url = shared_server(two_blocks).url
    assert main(["dot_product", "--url", url, "--text", "the", "--generate", "3"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("heed run: model 'dot_product' cannot generate: it was exported without the graphs of steps")
    assert main(["dot_product", "--url", url]) == 2
    assert "--text" not in capsys.readouterr().err


def test_tokens_without_a_tokenizer_are_printed_as_ids(run, generating, shared_server, tmp_path):
    models = tmp_path / "models"
    shutil.copytree(generating / "models", models, ignore=shutil.ignore_patterns("tokenizer*"))
    url = shared_server(models).url
    with Client(url) as heed:
        expected = heed.generate("gpt", input_ids=[7, 40, 23], max_new_tokens=4).result()
    status, printed, _ = run("--url", url, "--input-ids", "[7, 40, 23]", "--generate", 4)
    assert (status, printed) == (0, " ".join(str(token.id) for token in expected.generated) + "\n")
    status, printed, _ = run("--url", url, "--describe")
    assert (status, printed.splitlines()[-1]) == (0, "generates text: --input-ids FILE --generate N")
    status, _, said = run("--url", url, "--text", "the cat", "--generate", 4)
    assert status == 2
    assert "/v1/attention and /v1/generate take token ids as input_ids" in said
