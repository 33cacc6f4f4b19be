"""Families of transformers, from a directory to answers over HTTP that are equal to transformers' own."""

import re
from datetime import date
from hashlib import sha256
from itertools import chain

import numpy as np
import pytest
import torch
import transformers

from export.__main__ import main
from export.hf.verification.float64 import in_float64
from tests.export.hf.generating import check_generation, metadata_entry
from tests.export.hf.intervening import STACKS, check_changed_generation, check_interventions, check_sweeps
from tests.support.families import FAMILIES, PREPROCESSOR, REFUSED, save, takes_text
from tests.support.server import serving
from tests.support.texts import TARGETS, TEXTS

FAST = "bert"  # the others are extended
# Two stacks, attention without transformers' interface, and pictures: `make test-all` compares these, and a twentieth
# of the others.
DIFFERENT = {"bart", "deberta v2, relative", "vit"}
WEEK = "{0.year}-{0.week}".format(date.today().isocalendar())  # another twentieth each week
EPS = np.finfo(np.float32).eps
SIZES = {"n": 9, "m": 6}
SLACK = 4  # the error of one draw may be so many times the limit of another
DRAWS = 8  # of inputs, whose errors and limits are compared by their medians: the error of a few numbers is random
WITHOUT_CACHE = {"audio-spectrogram-transformer", "deit", "dinov2", "vit", "wav2vec2"}  # types of models
LAYER, HEAD = 1, 1  # removed by a mask of heads
SPECIAL_TOKENS = {"vit": 1, "clip vision": 1, "deit": 2, "dinov2": 1, "siglip vision": 0}
BART = {  # the projections that follow the heads
    "head_mask": r"encoder\.layers\.\d+\.self_attn\.out_proj",
    "decoder_head_mask": r"decoder\.layers\.\d+\.self_attn\.out_proj",
    "cross_attn_head_mask": r"decoder\.layers\.\d+\.encoder_attn\.out_proj",
}
PROJECTIONS = {
    "bert": {"head_mask": r"attention\.output\.dense"},
    "roberta": {"head_mask": r"attention\.output\.dense"},
    "llama": {"head_mask": "o_proj"},
    "vit": {"head_mask": "o_proj"},
    "gemma 2": {"head_mask": "o_proj"},
    "gpt oss": {"head_mask": "o_proj"},
    "bart": BART,
    "whisper": BART,
    "t5": {
        "head_mask": r"encoder\..*\.SelfAttention\.o",
        "decoder_head_mask": r"decoder\..*\.SelfAttention\.o",
        "cross_attn_head_mask": r"decoder\..*\.EncDecAttention\.o",
    },
}
FORMULA = {"t5", "t5, encoder", "gpt oss"}  # no kernel adds a bias to the scores, or a sink to the keys
MASKED = {"decoder_head_mask": "weights", "cross_attn_head_mask": "cross_weights"}
# Attention that does not go through transformers' AttentionInterface.
WITHOUT_MASK = {"bloom", "deberta v2", "deberta v2, relative", "falcon", "gpt j", "gpt neo", "mpnet"}
OTHER_SCORES = {"t5", "t5, encoder", "mt5", "gemma 2", "gemma 4"}  # a bias for the distance; a softcap; other widths
JOINED = {"bloom", "deepseek v2", "falcon", "gpt j", "gpt neo", "mt5", "t5"}  # steps that copy the past
SITES = {"weights", "head_output", "hidden", "attention_output", "mlp_output"}
OF_TWO_STACKS = {
    *SITES, *(f"encoder_{site}" for site in SITES), "cross_weights", "cross_head_output", "cross_attention_output"
}  # fmt: skip
OF_STEPS = {"decode", "decode_output", "encoder"}
OF_FEATURES = {
    *OF_STEPS, *(f"{graph}_interventions" for graph in OF_STEPS), "interventions", "interventions_output", "head"
}  # fmt: skip
WITHOUT_SITES = {  # weights of batch and heads in one axis; an MLP of positions and batch in one; other branches
    "bloom": {"head_output"}, "deberta v2": {"head_output"}, "deberta v2, relative": {"head_output"},
    "gemma 4": {"head_output", "mlp_output"}, "lfm 2": {"attention_output", "mlp_output"}, "opt": {"mlp_output"},
}  # fmt: skip
# Their outputs, or layers, take more than the hidden states before; not every layer has each site.
WITHOUT_LAYERS = {"depth anything", "gemma 4", "lfm 2"}
SCORE_ERROR = 1e-4
pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


def drawn(block, padding, seed):
    """Inputs of two rows by the description that the server gives; with ``padding`` the second row is shorter."""
    rng = np.random.default_rng(seed)
    inputs = {}
    for spec in block["inputs"]:
        shape = [{"batch": 2, **SIZES}.get(dim, dim) for dim in spec["shape"]]
        if spec["name"].endswith("head_mask"):
            continue
        if spec["dtype"] == "float32":
            inputs[spec["name"]] = rng.standard_normal(shape, np.float32)
        elif spec["name"].endswith("input_ids"):
            inputs[spec["name"]] = rng.integers(5, 60, shape)
        elif spec["name"].endswith("attention_mask") and padding:
            inputs[spec["name"]] = np.ones(shape, int)
            inputs[spec["name"]][1, shape[1] // 2 :] = 0
    return inputs


def answered(model, inputs, dtype):
    """What transformers answers, by Heed's names."""
    tensors = {name: torch.from_numpy(x) for name, x in inputs.items()}
    tensors = {name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()}
    options = {} if model.config.model_type in WITHOUT_CACHE else {"use_cache": False}
    with torch.no_grad():
        result = model(**tensors, output_attentions=True, output_hidden_states=True, **options)
    if "start_logits" in result:
        output = torch.stack([result.start_logits, result.end_logits], -1)
    else:
        output = next(result[name] for name in ("logits", "predicted_depth", "last_hidden_state") if name in result)
    if result.get("encoder_attentions"):
        names = {"weights": "decoder", "encoder_weights": "encoder", "cross_weights": "cross"}
        layers = {ours: result[f"{theirs}_attentions"] for ours, theirs in names.items()}
        layers["hidden_states"] = result.decoder_hidden_states
        layers["encoder_hidden_states"] = result.encoder_hidden_states
    else:
        layers = {"weights": result.attentions, "hidden_states": result.hidden_states}
    return {"output": output.numpy()} | {name: torch.stack(of).numpy() for name, of in layers.items()}


def loaded(folder):
    """The model of a directory, with eager attention and experts."""
    model = getattr(transformers, transformers.AutoConfig.from_pretrained(folder).architectures[0])
    model = model.from_pretrained(folder, attn_implementation="eager").eval()
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")
    return model


def answered_twice(model, inputs):
    """What it answers in float32, and in float64."""
    plain = answered(model, inputs, torch.float32)
    model.double()
    with in_float64():
        return plain, answered(model, inputs, torch.float64)


def limit_of(plain, exact):
    """Twice the error of transformers in float32."""
    return 2 * np.abs(plain - exact).max() + EPS * np.abs(exact).max()


def remove_head(model, projection, heads):
    """Set to zero the columns of the output projection that take head HEAD of layer LAYER."""
    matrix = [part.weight for name, part in model.named_modules() if re.search(f"{projection}$", name)][LAYER]
    width = matrix.shape[1] // heads
    with torch.no_grad():
        matrix[:, HEAD * width : (HEAD + 1) * width] = 0


def tokenized(block, folder):
    """The texts that the server is asked with, and the inputs that transformers' tokenizer makes of them."""
    names = [spec["name"] for spec in block["inputs"]]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    several = "attention_mask" in names
    texts = TEXTS if several else TEXTS[0]
    inputs = dict(tokenizer(texts if several else [texts], padding=True, return_tensors="np"))
    body = {"text": texts}
    if "decoder_input_ids" in names:
        body["text_target"] = TARGETS
        start = transformers.AutoConfig.from_pretrained(folder).decoder_start_token_id
        targets = tokenizer(TARGETS)["input_ids"]
        shifted = [ids[:-1] if ids[0] == start else [start, *ids[:-1]] for ids in targets]
        padded = tokenizer.pad({"input_ids": shifted}, return_tensors="np")
        inputs |= {f"decoder_{name}": x for name, x in padded.items()}
    return body, {name: inputs[name] for name in names if name in inputs}


def compared(client, folder, inputs, body, path="attention", removed=None):
    """The error of each answer of the server to ``body``, and its limit.

    With ``removed``, the name and the shape of a mask, and the name of an output projection, a head is removed: by that
    mask, and from that matrix in transformers.
    """
    model = loaded(folder)
    if removed:
        mask, (layers, heads), projection = removed
        remove_head(model, projection, heads)
    plain, exact = answered_twice(model, inputs)
    if removed:
        body = body | {mask: [[float((i, j) != (LAYER, HEAD)) for j in range(heads)] for i in range(layers)]}
        masked = MASKED.get(mask, "encoder_weights" if "encoder_weights" in exact else "weights")
        plain[masked][LAYER, :, HEAD] = exact[masked][LAYER, :, HEAD] = 0
    answer = client.post(f"/v1/{path}/mine", json=body | {"outputs": list(exact)}).json()
    alone = client.post(f"/v1/{path}/mine", json=body | {"outputs": ["output"]}).json()
    pairs = [(name, answer[name]) for name in exact] + [("output", alone["output"])]
    for name, computed in pairs:
        if isinstance(body.get("text"), str):
            computed = np.expand_dims(computed, 0 if name == "output" else 1)
        assert np.shape(computed) == exact[name].shape, name
        yield name, np.abs(np.array(computed) - exact[name]).max(), limit_of(plain[name], exact[name])


def check_next_tokens(client, folder, inputs, body):
    """The next tokens that the server answers are the most probable of transformers in float64, within its error."""
    plain, exact = (answers["output"] for answers in answered_twice(loaded(folder), inputs))
    limit = SLACK * limit_of(plain, exact)  # of a logit
    mask = inputs.get("decoder_attention_mask" if "decoder_input_ids" in inputs else "attention_mask")
    answer = client.post("/v1/text/mine", json=body | {"outputs": [], "next_tokens": 7}).json()["next_tokens"]
    several = isinstance(body["text"], list)
    for row, tokens in enumerate(answer if several else [answer]):
        last = -1 if mask is None else np.flatnonzero(mask[row])[-1]
        powers = np.exp(exact[row, last] - exact[row, last].max())
        p = powers / powers.sum()
        chosen = np.array([one["probability"] for one in tokens])
        np.testing.assert_allclose(chosen, p[[one["id"] for one in tokens]], rtol=np.expm1(2 * limit))
        np.testing.assert_allclose(chosen, np.sort(p)[::-1][:7], rtol=np.expm1(2 * limit))


def check_queries_and_keys(client, block, inputs):
    """The logarithms of the weights are the products of queries and keys, but for one number for each query."""
    outputs = [output["name"] for output in block["outputs"]]
    kinds = [name for name in ("weights", "encoder_weights", "cross_weights") if name in outputs]
    vectors = {of: [of.removesuffix("weights") + name for name in ("query", "key")] for of in kinds}
    body = {name: x.tolist() for name, x in inputs.items()}
    answer = client.post("/v1/attention/mine", json=body | {"outputs": [*kinds, *chain(*vectors.values())]}).json()
    for of, names in vectors.items():
        weights, queries, keys = (np.array(answer[name]) for name in (of, *names))
        with np.errstate(divide="ignore"):
            rest = np.where(weights > 0, np.log(weights) - queries @ np.swapaxes(keys, -1, -2), np.nan)
        assert np.nanmax(np.nanmax(rest, -1) - np.nanmin(rest, -1)) <= SCORE_ERROR, of


def marks_of(name):
    if name == FAST:
        return ()
    chosen = name in DIFFERENT or sha256(f"{name} {WEEK}".encode()).digest()[0] % 20 == 0
    return (pytest.mark.extended,) if chosen else (pytest.mark.extended, pytest.mark.family)


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in FAMILIES])
def test_answers_are_those_of_transformers(name, family):
    folder = family(name)
    version = folder / "models" / "mine" / "1"
    graphs = {file.stem for file in version.glob("*.onnx") if not file.stem.startswith("layer_")} - OF_FEATURES
    assert name not in FORMULA or graphs == {"model", "weights", "output"}
    predicts = any(end in FAMILIES[name].model for end in ("CausalLM", "Generation", "LMHead", "MTModel"))
    if predicts:
        assert metadata_entry(version, "generation")["in_place"] == (name not in JOINED)
    interventions = metadata_entry(version, "interventions")
    sites = OF_TWO_STACKS if (version / "encoder.onnx").exists() else SITES
    assert (interventions["left_out"], {*interventions["sites"]}) == ({}, sites - WITHOUT_SITES.get(name, set()))
    of_steps = {"sites": [*interventions["sites"]], "left_out": {}}
    assert interventions.get("generation") == (of_steps if predicts else None)
    assert "head" in interventions
    assert interventions["has_layers"] == (sites == SITES and name not in WITHOUT_LAYERS)
    with serving(folder / "models") as client:
        block = client.get("/v1/attention/mine").json()
        assert (block["generate"] is not None) == predicts
        assert block["interventions"].keys() == interventions["sites"].keys()
        if name in STACKS:
            check_interventions(client, loaded(folder / "model"), name, drawn(block, padding=False, seed=0))
        check_sweeps(client, drawn(block, padding=False, seed=0))
        if predicts:
            if name in STACKS:
                check_changed_generation(client, loaded(folder / "model"), name, drawn(block, padding=False, seed=0))
            check_generation(client, loaded(folder / "model"), name)
        shapes = {spec["name"]: spec["shape"] for spec in block["inputs"]}
        masks = BART if "decoder_input_ids" in shapes else {"head_mask"}
        assert {mask for mask in shapes if "head" in mask} == (set() if name in WITHOUT_MASK else {*masks})
        if name in SPECIAL_TOKENS:
            size = {"height": 16, "width": 16, "channels": 3, "patch_size": 4}
            more = {"rescale_factor": 1 / 255, "resize": None}
            assert block["preprocessor"] == PREPROCESSOR | size | more | {"special_tokens": SPECIAL_TOKENS[name]}
        removals = [(True, (mask, shapes[mask], end)) for mask, end in PROJECTIONS.get(name, {}).items()]
        for padding, removed in [(False, None), (True, None), *removals]:
            answers = []
            for seed in range(DRAWS):
                inputs = drawn(block, padding, seed)
                body = {name: x.tolist() for name, x in inputs.items()}
                answers.append(compared(client, folder / "model", inputs, body, removed=removed))
            for output in zip(*answers, strict=True):
                names, errors, limits = zip(*output, strict=True)
                assert np.median(errors) <= np.median(limits), names[0]
                assert max(errors) <= SLACK * max(limits), names[0]
        if name not in WITHOUT_MASK | OTHER_SCORES:
            check_queries_and_keys(client, block, drawn(block, padding=False, seed=0))
        if takes_text(name):
            body, inputs = tokenized(block, folder / "model")
            for output, error, limit in compared(client, folder / "model", inputs, body, "text"):
                assert error <= SLACK * limit, output
            assert block["tokenizer"]["next_tokens"] == predicts
            if predicts:
                check_next_tokens(client, folder / "model", inputs, body)


@pytest.mark.extended
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_had_is_refused(name, tmp_path, capsys):
    family, reason = REFUSED[name]
    save(family, tmp_path / "model")
    assert main(["hf", str(tmp_path / "model"), "--name", "mine", "--repository", str(tmp_path / "models")]) == 2
    assert re.search(reason, capsys.readouterr().err)
    assert list((tmp_path / "models").rglob("*")) == []
