"""``POST /v1/lens``: each layer's hidden states through the final norm and the head of transformers."""

import httpx
import numpy as np
import pytest
import torch

from export.hf.pretrained import load
from tests.support.in_process import serving_in_process

LENS = "/v1/lens/gpt"
IDS = [7, 40, 23, 11, 9]
ERROR = 1e-6
REMOVED = {"at": "hidden", "layers": 1, "positions": 2, "scale": 0}
pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


@pytest.fixture
def lens(client):
    """The answer to a lens of IDS."""

    def post(**fields):
        response = client.post(LENS, json={"input_ids": IDS, **fields})
        assert response.status_code == 200, response.text
        return response.json()

    return post


@pytest.fixture(scope="module")
def expected(generating):
    """Probabilities [layers + 1, n, vocabulary] in float64."""
    model = load(generating / "gpt").model.double()
    with torch.no_grad():
        result = model(torch.tensor([IDS]), output_hidden_states=True)
        below = torch.stack(result.hidden_states[:-1])
        logits = torch.cat([model.lm_head(model.transformer.ln_f(below)), result.logits[None]])
    return logits[:, 0].softmax(-1).numpy()


def test_each_layer_predicts_what_the_model_s_head_makes_of_it(lens, expected):
    answer = lens(lens_top_k=3)
    indices, probabilities = (np.array(answer["lens"][name]) for name in ("indices", "probabilities"))
    assert (answer["layers"], answer["positions"]) == ([0, 1, 2], [0, 1, 2, 3, 4])
    assert np.array_equal(indices, np.argsort(-expected, axis=-1)[..., :3])
    assert np.abs(probabilities - np.take_along_axis(expected, indices, -1)).max() <= ERROR
    predicted = np.array(answer["lens"]["output_probabilities"])
    assert predicted.shape == expected.shape[:2]
    followed = expected[:, range(len(IDS)), expected[-1].argmax(-1)]
    assert np.abs(predicted - followed).max() <= ERROR
    following = [[1 + int((row > row[IDS[at + 1]]).sum()) for at, row in enumerate(layer[:-1])] for layer in expected]
    assert answer["ranks"] == [[*ranks, None] for ranks in following]


def test_layers_and_positions_are_selected(lens):
    whole, some = lens(lens_top_k=2), lens(lens_top_k=2, layers=[2, 0], positions="-2:")
    for name in ("indices", "probabilities", "output_probabilities"):
        assert np.array_equal(np.array(whole["lens"][name])[[2, 0]][:, -2:], some["lens"][name])
    without_output = lens(lens_top_k=2, layers=[1, 0])["lens"]["output_probabilities"]
    assert without_output == [whole["lens"]["output_probabilities"][layer] for layer in (1, 0)]
    assert some["ranks"] == [[whole["ranks"][layer][place] for place in (3, 4)] for layer in (2, 0)]


def test_a_changed_run_is_seen(lens, client):
    changed = lens(lens_top_k=60, layers=-1, interventions=[REMOVED])["lens"]
    body = {"input_ids": IDS, "outputs": ["output"], "interventions": [REMOVED]}
    logits = np.array(client.post("/v1/attention/gpt", json=body).json()["output"])
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    found = np.take_along_axis(powers / powers.sum(-1, keepdims=True), np.array(changed["indices"])[0], -1)
    assert np.abs(found - changed["probabilities"][0]).max() <= ERROR
    below, same = (lens(lens_top_k=60, layers=0, **more)["lens"] for more in ({}, {"interventions": [REMOVED]}))
    followed = same.pop("output_probabilities")[0]  # of the changed output
    below.pop("output_probabilities")
    assert below == same
    ids, shares = (np.array(same[name])[0] for name in ("indices", "probabilities"))
    assert followed == shares[ids == np.array(changed["indices"])[0, :, :1]].tolist()


def test_a_text_has_tokens(client):
    answer = client.post(LENS, json={"text": "the cat sat", "lens_top_k": 2}).json()
    assert answer["tokens"] == ["<s>", "the", "cat", "sat", "</s>"]
    ids, names = (np.array(answer["lens"][name]).reshape(-1) for name in ("indices", "tokens"))
    known = dict(zip(ids.tolist(), names.tolist(), strict=True))
    assert (known[0], known[16]) == ("<s>", "cat")


def test_less_memory_gives_the_same(lens, generating):
    with serving_in_process(generating / "models", max_memory_bytes=40_000) as small:
        response = httpx.post(f"http://127.0.0.1:{small.port}{LENS}", json={"input_ids": IDS}, timeout=60)
    assert response.status_code == 200, response.text
    assert response.json() == lens()


@pytest.mark.parametrize(
    ("body", "status", "field", "words"),
    [
        ({}, 422, "text", "missing (required)"),
        ({"input_ids": IDS, "lens_top_k": 0}, 422, "lens_top_k", "from 1 to 100, got 0"),
        ({"input_ids": IDS, "lens_top_k": 61}, 422, "lens_top_k", "at most 60, the size of the vocabulary"),
        ({"input_ids": IDS, "layers": 3}, 422, "layers", "from -3 to 2, got 3"),
        ({"input_ids": IDS, "positions": [1, 1]}, 422, "positions", "selected twice"),
        ({"input_ids": IDS, "top_k": 3}, 400, "top_k", "unknown field"),
        ({"input_ids": IDS, "interventions": [{**REMOVED, "layers": 7}]}, 422, "interventions[0].layers", "got 7"),
        ({"input_ids": [IDS, IDS]}, 422, "input_ids", "expected one row, got 2"),
        ({"input_ids": [[999]]}, 422, "input_ids", "999"),
        ({"input_ids": [7, [40], 23]}, 422, "input_ids", "got a list at [1]"),
    ],
    ids=["no input", "no token", "more than there are", "a layer", "a position twice", "an unknown field",
         "an intervention", "two rows", "no token id", "a list in place of a token"],
)  # fmt: skip
def test_an_error_names_the_field(client, body, status, field, words):
    response = client.post(LENS, json=body)
    problem = response.json()
    assert (response.status_code, problem.get("field")) == (status, field), problem
    assert words in problem["detail"]
