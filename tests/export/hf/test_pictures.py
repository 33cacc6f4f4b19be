"""Language models that read pictures answer as transformers does with its tokenizer and processor."""

import io
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from export.hf.description import block_of
from export.hf.pretrained import ModelRefused, load
from export.hf.verification.float64 import in_float64
from tests.support.application import running
from tests.support.families import save
from tests.support.media import files, text_of
from tests.support.readers import IMAGE_TOKEN, READERS, TOKEN, tokenizer_with_pictures

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
SLACK = 4  # of two float32 runs of the same numbers, one may be so many times as far from float64 as the other
EPS = np.finfo(np.float32).eps
COUNT = 16  # tokens of a picture
SIDES = (16, 16)
POSITIONS = "image_position_ids"  # of patches
SENT = [files()[mode] for mode in ("JPEG", "320x240")]
PICTURES = [text_of(content) for content in SENT]
TEXT, BOTH, WORDS = "who sat on <image> when", "the cat <image> sat <image> on the mat", "the cat sat on the mat"
OUTPUTS = ["output", "weights", "vision_weights", "hidden_states", "vision_hidden_states"]
GENERATING = [name for name in READERS if name != "paligemma"]
GENERATED = 8
EXPECTED = f"expected 16 of token {TOKEN} (<image>) for each row of pixel_values; of a text one <image> becomes as many"


@dataclass
class Served:
    """A client of the server, and the model in transformers with its processor."""

    client: object
    model: transformers.PreTrainedModel
    processor: object

    def given(self, texts, contents, dtype=torch.float32):
        """The arguments of the model's call, as its processor makes them."""
        words, model_type = tokenizer_with_pictures(), self.model.config.model_type
        given = dict(
            words([text.replace(IMAGE_TOKEN, IMAGE_TOKEN * COUNT) for text in texts], padding=True, return_tensors="pt")
        )
        given.pop("token_type_ids", None)
        if model_type == "gemma3":
            given["token_type_ids"] = (given["input_ids"] == TOKEN).long()
        if model_type == "paligemma":
            given["token_type_ids"] = torch.zeros_like(given["input_ids"])
        if contents:
            opened = [Image.open(io.BytesIO(content)).convert("RGB") for content in contents]
            if self.is_packed or model_type == "gemma4":  # of any size, but Heed has one
                opened = [picture.resize(SIDES, Image.Resampling.BICUBIC) for picture in opened]
                given["mm_token_type_ids"] = (given["input_ids"] == TOKEN).int()
            seen = self.processor(opened, return_tensors="pt")
            given |= {name: seen[name] for name in ("image_grid_thw", POSITIONS) if name in seen}
            pixels = seen["pixel_values"].to(dtype)
            given["pixel_values"] = pixels[None] if model_type == "smolvlm" else pixels
        return given

    @property
    def is_packed(self):
        """Whether the patches of all pictures are one sequence, of which transformers returns no weights."""
        return self.model.config.model_type.startswith("qwen")

    def expected(self, texts, contents, dtype):
        """Every output by Heed's names, computed in ``dtype``."""
        self.model.to(dtype)
        given, recorded = self.given(texts, contents, dtype), {"output_attentions": True, "output_hidden_states": True}
        with torch.no_grad(), in_float64() if dtype == torch.float64 else nullcontext():
            result = self.model(**given, **recorded)
            has_tower = contents and not self.is_packed
            seen = {name: given[name] for name in ("pixel_values", POSITIONS) if name in given}
            tower = self.model.get_image_features(**seen, **recorded) if has_tower else None
        outputs = {"output": result.logits}
        for prefix, of in (("", result), *([("vision_", tower)] if tower else [])):
            outputs[f"{prefix}weights"] = torch.stack(of.attentions)
            if len({layer.shape for layer in of.hidden_states}) == 1:  # the last one of Gemma 4's tower is pooled
                outputs[f"{prefix}hidden_states"] = torch.stack(of.hidden_states)
        arrays = {name: tensor.double().numpy() for name, tensor in outputs.items()}
        if POSITIONS in given:  # of Gemma 4, whose processor adds patches of padding
            count = int((given[POSITIONS][0] >= 0).all(-1).sum())
            arrays["vision_weights"] = arrays["vision_weights"][..., :count, :count]
        return arrays


def marked(*names):
    """``make test-families`` takes all of them, ``make test-all`` one."""
    of_all, of_families = pytest.mark.extended, (pytest.mark.extended, pytest.mark.family)
    return [pytest.param(name, marks=of_all if name == "llava" else of_families) for name in names]


@pytest.fixture(params=marked(*READERS))
def served(request, readers):
    """A model by its name, from what ``save_pretrained`` writes."""
    folder = readers(request.param)
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        folder / "model", attn_implementation="eager"
    ).eval()
    with running(folder / "models") as client:
        yield Served(client, model, READERS[request.param].image_processor())


@pytest.mark.parametrize(
    ("texts", "contents"),
    [([TEXT], SENT[:1]), ([BOTH, WORDS], SENT), ([TEXT, TEXT], SENT), ([WORDS], [])],
    ids=["one picture", "two in the first text", "one in each text", "no picture"],
)
def test_texts_with_pictures_have_the_outputs_of_transformers(texts, contents, served):
    plain, exact = (served.expected(texts, contents, dtype) for dtype in (torch.float32, torch.float64))
    pictures = {"images": [text_of(content) for content in contents]} if contents else {}
    for names in ([name for name in OUTPUTS if name in exact], ["output"]):
        answer = served.client.post("/v1/text/mine", json={"text": texts, **pictures, "outputs": names})
        assert answer.status_code == 200, answer.text
        for name in names:
            error = SLACK * (np.abs(plain[name] - exact[name]).max() + EPS * np.abs(exact[name]).max())
            np.testing.assert_allclose(answer.json()[name], exact[name], rtol=0, atol=error, err_msg=name)


@pytest.mark.parametrize("served", marked("llava"), indirect=True)
def test_a_token_for_a_picture_becomes_those_of_transformers_processor(served):
    processor = transformers.LlavaProcessor(
        served.processor,
        tokenizer_with_pictures(),
        patch_size=4,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    for text, count in ((TEXT, 1), (BOTH, 2), (f"{IMAGE_TOKEN}cat {IMAGE_TOKEN}", 2)):
        expected = processor(images=[Image.new("RGB", (16, 16))] * count, text=text)["input_ids"]
        answer = served.client.post("/v1/tokenize/mine", json={"text": text}).json()
        assert answer["input_ids"] == expected[0]
        begin = text.index(IMAGE_TOKEN)
        place = expected[0].index(TOKEN)
        assert answer["offsets"][place : place + COUNT] == [[begin, begin + len(IMAGE_TOKEN)]] * COUNT


@pytest.mark.parametrize("served", marked(*GENERATING), indirect=True)
def test_prompts_with_pictures_generate_the_tokens_of_transformers(served):
    options = {"max_new_tokens": GENERATED, "do_sample": False, "output_attentions": True}
    body = {"max_new_tokens": GENERATED, "ignore_eos": True, "outputs": ["weights"]}
    for text, contents in ((TEXT, SENT[1:]), (BOTH, SENT), (WORDS, [])):
        given = served.given([text], contents)
        ends = {"eos_token_id": None, "pad_token_id": 1, "return_dict_in_generate": True}
        whole = served.model.to(torch.float32).generate(**given, **options, **ends)
        pictures = {"images": [text_of(content) for content in contents]} if contents else {}
        tokens = served.client.post("/v1/generate/mine", json={"text": text, **pictures, **body}).json()["generated"]
        assert [token["id"] for token in tokens] == whole.sequences[0, given["input_ids"].shape[1] :].tolist()
        for token, layers in zip(tokens, whole.attentions, strict=True):
            weights = np.array(token["weights"])
            for own, layer in zip(weights, layers, strict=True):
                window = layer.shape[-1]  # transformers' weights of a sliding window are cut to it
                np.testing.assert_allclose(own[..., -window:], layer[0, :, -1:], rtol=0, atol=1e-5)
                assert not own[..., :-window].any()


@pytest.mark.parametrize("served", marked("llava", "qwen 3 vl"), indirect=True)
def test_a_generated_token_of_pictures_has_no_picture(served):
    """It has its own vector, as in transformers; other tokens of the run are not affected."""
    body = {"input_ids": [4, 5, 6], "max_new_tokens": 40, "ignore_eos": True, "temperature": 100}
    answers = [served.client.post("/v1/generate/mine", json={**body, "seed": seed}) for seed in range(4)]
    assert [answer.status_code for answer in answers] == [200] * 4, answers[0].text
    assert TOKEN in [token["id"] for answer in answers for token in answer.json()["generated"]]


@pytest.mark.parametrize("served", marked("llava", "qwen 3 vl"), indirect=True)
def test_prompts_of_a_list_have_pictures_in_their_order(served):
    def generated(**body):
        answer = served.client.post("/v1/generate/mine", json={**body, "max_new_tokens": 3, "next_tokens": 2})
        assert answer.status_code == 200, answer.text
        return answer.json()["generated"]

    first, second = (generated(text=TEXT, images=[picture]) for picture in PICTURES)
    both = generated(text=BOTH, images=PICTURES)
    several = generated(text=[TEXT, WORDS, BOTH, TEXT], images=[PICTURES[0], *PICTURES, PICTURES[1]])
    for alone, together in ((first, several[0]), (both, several[2]), (second, several[3])):
        assert [one["id"] for one in alone] == [one["id"] for one in together]
        for one, other in zip(alone, together, strict=True):
            assert other["logprob"] == pytest.approx(one["logprob"], abs=1e-4)
    assert first != second


@pytest.mark.parametrize("served", marked("llava"), indirect=True)
def test_a_run_with_another_picture_is_put_in_place_of_a_layer(served):
    first, second = ({"text": TEXT, "images": [picture]} for picture in PICTURES)
    change = {"at": "hidden", "layers": 1, "from": second}
    other, changed = (
        served.client.post("/v1/text/mine", json={**body, "outputs": ["output"]}).json()["output"]
        for body in (second, {**first, "interventions": [change]})
    )
    np.testing.assert_allclose(changed, other, rtol=0, atol=1e-4)


@pytest.mark.parametrize("over", [{"layers": "all"}, {"positions": "5:9"}], ids=["layers", "positions"])
@pytest.mark.parametrize("site", ["hidden", "mlp_output"])
@pytest.mark.parametrize("served", marked("llava"), indirect=True)
def test_each_cell_of_a_sweep_is_that_change_alone(site, over, served):
    """Its runs have many rows, each of which has the pictures."""
    body = {"text": BOTH, "images": PICTURES}
    change = {
        "at": site,
        "from": {"text": BOTH, "images": PICTURES[::-1]},
        **({} if "layers" in over else {"layers": 1}),
    }
    metric = {"probability": [5]}
    answer = served.client.post("/v1/sweep/mine", json={**body, "intervention": change, "over": over, "metric": metric})
    assert answer.status_code == 200, answer.text
    (axis,) = over
    for place, value in zip(answer.json()[axis], answer.json()["values"], strict=True):
        one = {**body, "interventions": [{**change, axis: place}], "outputs": ["output"]}
        logits = np.array(served.client.post("/v1/text/mine", json=one).json()["output"])[-1]
        assert value == pytest.approx(np.exp(logits - logits.max())[5] / np.exp(logits - logits.max()).sum(), rel=1e-3)


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        ("text", {"text": TEXT}, f"text: {EXPECTED}: 0 for 0 rows, got 16"),
        ("text", {"text": WORDS, "images": PICTURES[:1]}, f"text: {EXPECTED}: 16 for 1 row, got 0"),
        ("text", {"text": BOTH, "images": PICTURES[:1]}, f"text: {EXPECTED}: 16 for 1 row, got 32"),
        (
            "text",
            {"text": IMAGE_TOKEN * 9, "images": PICTURES[:1], "truncation": True},
            "text: expected at most 48 tokens, got 146; a text with pictures is not truncated",
        ),
        ("attention", {"input_ids": [[0, TOKEN]]}, f"input_ids: {EXPECTED}: 0 for 0 rows, got 1"),
        ("generate", {"text": TEXT}, f"text: {EXPECTED}: 0 for 0 rows, got 16"),
        ("generate", {"text": WORDS, "images": PICTURES[:1]}, f"text: {EXPECTED}: 16 for 1 row, got 0"),
        (
            "generate",
            {"input_ids": [0, *[TOKEN] * 16], "images": PICTURES[:1]},
            f"input_ids: a prompt cannot end with token {TOKEN} (<image>): another token goes behind a picture",
        ),
        (
            "generate",
            {"input_ids": [[TOKEN, *[5] * 16], [*[TOKEN] * 15, 5, 5]], "images": PICTURES[:1]},
            f"input_ids: prompt 0 has 1 of token {TOKEN} (<image>), not a multiple of 16",
        ),
        (
            "generate",
            {"text": TEXT, "pixel_values": [[1.0]]},
            "pixel_values: expected shape [images, 3, 16, 16], got shape [1, 1]",
        ),
        (
            "generate",
            {"text": TEXT, "images": PICTURES[:1], "pixel_values": [[1.0]]},
            "pixel_values: given, and computed from another field, too",
        ),
    ],
)
@pytest.mark.parametrize("served", marked("llava"), indirect=True)
def test_tokens_and_pictures_that_do_not_fit_are_refused(path, body, detail, served):
    answer = served.client.post(f"/v1/{path}/mine", json=body)
    assert answer.status_code in (400, 422)
    assert detail in answer.json()["detail"]


@pytest.mark.parametrize("served", marked("llava"), indirect=True)
def test_tokens_are_counted_in_each_request_of_a_shape(served):
    """Also after one of the same lengths was right, and in V2."""
    right = {"input_ids": [[0, *[TOKEN] * 16, 5]], "images": PICTURES[:1], "outputs": ["output"]}
    wrong = {**right, "input_ids": [[0, *[TOKEN] * 15, 5, 5]]}
    assert served.client.post("/v1/attention/mine", json=right).status_code == 200
    answer = served.client.post("/v1/attention/mine", json=wrong)
    assert (answer.status_code, answer.json()["detail"]) == (422, f"input_ids: {EXPECTED}: 16 for 1 row, got 15")
    for ids, status in (([5, 6], 200), ([5, TOKEN], 400)):
        body = {"inputs": [{"name": "input_ids", "shape": [1, 2], "datatype": "INT64", "data": ids}]}
        assert served.client.post("/v2/models/mine/infer", json=body).status_code == status


@pytest.mark.extended
def test_pictures_have_a_size_of_their_own_and_may_be_left_out(once):
    folder = once("llava of readers", lambda folder: save(READERS["llava"].family, folder))
    block, _ = block_of(load(folder), "mine")
    assert block.description.startswith("2 layers of 4 heads for texts, 3 of 4 for images; returns logits over the")
    pictures = block.inputs["pixel_values"]
    assert (pictures.shape, pictures.required) == (("images", 3, 16, 16), False)
    assert (pictures.placeholder.token, pictures.placeholder.count) == (TOKEN, COUNT)
    assert (block.left_out, block.limits) == ({"images": 0}, {"n": 48})
    assert block.outputs["vision_weights"].shape == (3, "images", 4, 17, 17)


@pytest.mark.extended
def test_a_tower_that_takes_other_pictures_is_refused_with_the_parts(once):
    """ViP-LLaVA takes the hidden states of more layers than its tower has."""

    def fill(folder):
        save(type(READERS["llava"].family)("VipLlavaForConditionalGeneration", READERS["llava"].family.config), folder)

    folder = once("vip llava", fill)
    with pytest.raises(ModelRefused, match=r"takes no pixel_values of shape .*--part exports one of its models: "):
        block_of(load(folder), "mine")
