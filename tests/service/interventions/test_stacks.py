"""Interventions in the blocks encoder and decoder, compared with changes in their torch modules in float64."""

from copy import deepcopy

import httpx
import numpy as np
import pytest
import torch

from models import multi_head
from models.catalogue import find
from tests.support.in_process import serving_in_process

LAYER, HEAD, POSITION, KEY = 1, 2, 3, 1
EPS = float(np.finfo(np.float32).eps)
VECTOR = [round(0.1 * i - 1.5, 1) for i in range(32)]
ACTIONS = ({"scale": 0.5}, {"add": VECTOR})
EACH = [
    *(
        {"at": site, "positions": POSITION, **action}
        for site in ("hidden", "attention_output", "mlp_output")
        for action in ACTIONS
    ),
    {"at": "head_output", "heads": HEAD, "positions": POSITION, "replace": VECTOR[:8]},
    {"at": "weights", "heads": HEAD, "queries": POSITION, "keys": KEY, "scale": 0, "renormalize": True},
]


@pytest.fixture(scope="module")
def blocks(repository):
    with serving_in_process(repository) as service, httpx.Client(base_url=f"http://127.0.0.1:{service.port}") as client:
        yield client


@pytest.fixture
def post(blocks):
    """The answer of a block, with the outputs ``output`` and ``weights``."""

    def post(block, **fields):
        response = blocks.post(f"/v1/attention/{block}", json={"outputs": ["output", "weights"], **fields})
        assert response.status_code == 200, response.text
        return {name: np.array(response.json()[name]) for name in ("output", "weights")}

    return post


def ids(rows=1):
    return np.random.default_rng(rows).integers(0, 100, (rows, 6)).tolist()


def changed(tensor, change, place):
    """A copy of ``tensor`` with ``change`` at ``place``."""
    tensor = tensor.clone()
    for action, number in change.items():
        if action == "replace":
            tensor[place] = torch.tensor(number, dtype=tensor.dtype)
        elif action == "add":
            tensor[place] += torch.tensor(number, dtype=tensor.dtype)
        elif action == "scale":
            tensor[place] *= number
    return tensor


def in_torch(monkeypatch, block, change, **inputs):
    """The outputs of the block's module in float64 with ``change`` in one layer."""
    module = deepcopy(find(block).build()).double().eval()
    layer, at = module.layers[LAYER], change["at"]
    of_position = (slice(None), POSITION)
    if at == "hidden":
        layer.register_forward_pre_hook(lambda _, args: (changed(args[0], change, of_position), *args[1:]))
    elif at == "attention_output":
        layer.attention.register_forward_hook(
            lambda *called: called[-1]._replace(output=changed(called[-1].output, change, of_position))
        )
    elif at == "mlp_output":
        layer.linear2.register_forward_hook(lambda *called: changed(called[-1], change, of_position))
    else:
        _change_heads(monkeypatch, change)
    with torch.inference_mode():
        return module(**{name: torch.tensor(value) for name, value in inputs.items()})


def _change_heads(monkeypatch, change):
    """Replace the attention of ``LAYER`` by one whose heads are changed."""
    attend, calls = multi_head.attention, []

    def attention(query, key, value, **options):
        attended = attend(query, key, value, **options)
        calls.append(None)
        if len(calls) != LAYER + 1:
            return attended
        if change["at"] == "head_output":
            return attended._replace(output=changed(attended.output, change, (slice(None), HEAD, POSITION)))
        weights = changed(attended.weights, change, (slice(None), HEAD, POSITION, KEY))
        weights[:, HEAD, POSITION] /= weights[:, HEAD, POSITION].sum(-1, keepdim=True)
        return attended._replace(weights=weights, output=weights @ value)

    monkeypatch.setattr(multi_head, "attention", attention)


@pytest.mark.parametrize("change", EACH, ids=lambda one: f"{one['at']}-{[*one][-1]}")
@pytest.mark.parametrize("block", ["encoder", "decoder"])
def test_each_site(monkeypatch, post, block, change):
    inputs = {"input_ids": ids(2)}
    answer = post(block, **inputs, interventions=[{**change, "layers": LAYER}])
    expected = in_torch(monkeypatch, block, change, **inputs)
    for name, numbers in answer.items():
        exact = getattr(expected, name).numpy()
        np.testing.assert_allclose(numbers, exact, rtol=0, atol=32 * EPS * np.abs(exact).max())
    assert np.abs(answer["output"] - post(block, **inputs)["output"]).max() > 1e-3


def test_positions_of_a_step_are_those_behind_its_past(blocks, post):
    """The last token alone, with the present of those before, is changed as it is in the whole sequence."""
    whole, change = ids(), {"at": "hidden", "layers": 1, "scale": 0.5}
    expected = post("decoder", input_ids=whole, interventions=[{**change, "positions": -1}])
    first = [row[:-1] for row in whole]
    present = blocks.post(
        "/v1/attention/decoder", json={"input_ids": first, "outputs": ["present_key", "present_value"]}
    ).json()
    past = {f"past_{name}": present[f"present_{name}"] for name in ("key", "value")}
    step = post("decoder", input_ids=[row[-1:] for row in whole], **past, interventions=[change])
    np.testing.assert_allclose(step["output"], expected["output"][:, -1:], rtol=0, atol=64 * EPS)
    np.testing.assert_allclose(step["weights"], expected["weights"][..., -1:, :], rtol=0, atol=16 * EPS)


def test_a_mean_is_that_of_real_tokens(post):
    """Of the two rows one has four tokens."""
    change = [{"at": "hidden", "layers": 1, "replace": "mean"}]
    padded = post("encoder", input_ids=ids(2), nonpad_kv_seqlen=[6, 4], interventions=change)
    alone = post("encoder", input_ids=[ids(2)[1][:4]], interventions=change)
    np.testing.assert_allclose(padded["output"][1, :4], alone["output"][0], rtol=0, atol=32 * EPS)


@pytest.mark.parametrize("layers", [[1], [0], [1, 0], "1"], ids=str)
@pytest.mark.parametrize("action", [{"replace": "mean"}, {"from": {"input_ids": ids(2)[1], "layers": [1]}}], ids=str)
def test_the_layers_that_are_answered_change_no_number(post, layers, action):
    """Neither those of the request, nor those of another run, whose weights are read in all layers."""
    change = [{"at": "weights", **action}]
    plain = {"at": "weights", **({"from": {"input_ids": ids(2)[1]}} if "from" in action else action)}
    whole = post("decoder", input_ids=ids(), interventions=[plain])
    answer = post("decoder", input_ids=ids(), interventions=change, layers=layers, baseline=True)
    np.testing.assert_allclose(answer["output"], whole["output"], rtol=0, atol=16 * EPS)
    chosen = [int(layers)] if isinstance(layers, str) else layers
    np.testing.assert_allclose(answer["weights"], whole["weights"][chosen], rtol=0, atol=16 * EPS)


def test_the_baseline_of_masked_scores_has_null_for_them(blocks):
    body = {"input_ids": ids(), "interventions": [{"at": "mlp_output", "scale": 0}], "baseline": True}
    response = blocks.post("/v1/attention/decoder", json={**body, "outputs": ["scores"], "layers": [0], "heads": 0})
    assert response.status_code == 200, response.text
    scores = response.json()["baseline"]["scores"][0][0][0]
    assert [[number is None for number in row] for row in scores] == (~np.tri(6, dtype=bool)).tolist()


def test_masks_of_other_runs_are_read_as_those_of_requests(blocks, post):
    """Booleans; and 0 and 1 are ambiguous there, too."""
    mask = np.tri(6, dtype=bool)[None, None].tolist()
    other = {"input_ids": ids(2)[1:], "attn_mask": mask}
    masked = post("encoder", input_ids=other["input_ids"], attn_mask=mask)["output"]
    change = [{"at": "hidden", "layers": 0, "from": other}]
    patched = post("encoder", input_ids=ids(), attn_mask=mask, interventions=change)["output"]
    np.testing.assert_allclose(patched, masked, rtol=0, atol=16 * EPS)
    ambiguous = [{"at": "hidden", "from": {**other, "attn_mask": np.tri(6)[None, None].tolist()}}]
    response = blocks.post("/v1/attention/encoder", json={"input_ids": ids(), "interventions": ambiguous})
    assert (response.status_code, response.json()["field"]) == (422, "interventions[0].from.attn_mask")


def test_a_sweep_has_the_distance_of_each_cell(blocks, post):
    body = {"intervention": {"at": "hidden", "scale": 0}, "over": {"layers": "all", "positions": [1, 4]}}
    response = blocks.post("/v1/sweep/encoder", json={"input_ids": ids(), **body, "position": 2})
    assert response.status_code == 200, response.text
    plain = post("encoder", input_ids=ids())["output"][0, 2]
    for layer, row in enumerate(response.json()["values"]):
        for position, found in zip((1, 4), row, strict=True):
            change = {"at": "hidden", "scale": 0, "layers": layer, "positions": position}
            vector = post("encoder", input_ids=ids(), interventions=[change])["output"][0, 2]
            cosine = vector @ plain / np.linalg.norm(vector) / np.linalg.norm(plain)
            assert found == pytest.approx(1 - cosine, abs=64 * EPS)


def test_tokens_need_a_tokenizer(blocks):
    change = [{"at": "hidden", "tokens": ["a"], "scale": 0}]
    response = blocks.post("/v1/attention/encoder", json={"input_ids": ids(), "interventions": change})
    assert response.status_code == 422
    assert response.json()["field"] == "interventions[0].tokens"
