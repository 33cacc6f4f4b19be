"""A small model learns to go on with a sequence that repeats; a sweep finds the head by which it does.

A head of the first layer looks at the token before, and one of the second at the token behind the last occurrence of
the present one (Olsson et al., In-context learning and induction heads, 2022).
"""

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from export.__main__ import main
from tests.support.server import serving

VOCABULARY, LENGTH = 24, 32
PERIODS = range(4, 17)
ROWS, MAX_STEPS, LEARNED = 32, 3000, 0.02  # the loss at which it is
PERIOD = 10  # of the sequence that is served
pytestmark = [pytest.mark.extended, pytest.mark.filterwarnings("ignore")]  # those of transformers


def trained():
    """The model, trained for some twenty seconds on different tokens that are repeated with different periods."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY, max_position_embeddings=LENGTH, hidden_size=64, intermediate_size=64,
            num_hidden_layers=2, num_attention_heads=4, bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(MAX_STEPS):
        periods = torch.randint(PERIODS.start, PERIODS.stop, (ROWS, 1))
        tokens = torch.rand(ROWS, VOCABULARY).argsort(1)
        places = torch.arange(LENGTH).expand(ROWS, LENGTH)
        ids = tokens.gather(1, places % periods)
        known = (places > periods)[:, 1:]  # by a token that was there before
        loss = nn.functional.cross_entropy(model(ids).logits[:, :-1][known], ids[:, 1:][known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss < LEARNED:
            return model.eval()
    raise AssertionError(f"the loss is {loss:.3g} after {MAX_STEPS} steps")


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("induction")
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # several wait for each other where other tests run beside
    trained().save_pretrained(folder / "model")
    torch.set_num_threads(before)
    assert main(["hf", str(folder / "model"), "--name", "copies", "--repository", str(folder / "models")]) == 0
    with serving(folder / "models") as client:
        yield client


@pytest.fixture(scope="module")
def ids():
    tokens = np.random.default_rng(0).permutation(VOCABULARY)[:PERIOD]
    return np.resize(tokens, 2 * PERIOD - 3)  # the next token is that of place PERIOD - 3


def test_a_sweep_over_edges_finds_the_head_that_copies(client, ids):
    following = int(ids[len(ids) - PERIOD])
    body = {"input_ids": ids.tolist(), "metric": {"probability": following}}
    edges = {"at": "weights", "queries": -1, "scale": 0, "renormalize": True}
    over = {"layers": "all", "heads": "all", "keys": "all"}
    answer = client.post("/v1/sweep/copies", json={**body, "intervention": edges, "over": over}).json()
    assert answer["unchanged"] > 0.9
    lost = answer["unchanged"] - np.array(answer["values"])
    layer, head, key = np.unravel_index(lost.argmax(), lost.shape)
    assert (layer, key) == (1, len(ids) - PERIOD)  # the token behind the last occurrence of the present one
    assert lost[0].max() < 0.5 * lost.max()
    weights = client.post("/v1/attention/copies", json={"input_ids": ids.tolist(), "outputs": ["weights"]}).json()
    looked = np.array(weights["weights"])[:, :, -1, len(ids) - PERIOD]
    assert looked[layer, head] > 0.5 > looked[0].max()


def test_its_layer_is_that_behind_which_the_lens_knows_the_token(client, ids):
    answer = client.post("/v1/lens/copies", json={"input_ids": ids.tolist(), "lens_top_k": 1, "positions": -1}).json()
    probability = dict(zip(answer["layers"], np.array(answer["lens"]["probabilities"])[:, 0, 0], strict=True))
    tokens = dict(zip(answer["layers"], np.array(answer["lens"]["indices"])[:, 0, 0], strict=True))
    following = int(ids[len(ids) - PERIOD])
    assert (tokens[2], tokens[1] == following) == (following, False)
    assert probability[2] > 0.9


def test_the_first_layer_carries_the_token_before(client, ids):
    """Without what the first layer adds at the token that is copied, it is not found."""
    place = len(ids) - PERIOD
    body = {"input_ids": ids.tolist(), "metric": {"probability": int(ids[place])}}
    change = {"at": "attention_output", "layers": 0, "scale": 0}
    answer = client.post("/v1/sweep/copies", json={**body, "intervention": change, "over": {"positions": "all"}}).json()
    assert int(np.argmin(answer["values"])) == place
    assert min(answer["values"]) < 0.5 * answer["unchanged"]
