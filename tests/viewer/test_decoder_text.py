"""The text of the decoder in Patch and Lens: the model generates it, unless another is typed."""

import json
import shutil
from urllib.parse import urlencode

import httpx
from playwright.sync_api import expect


def test_a_decoder_has_the_text_that_it_generates(open_page, two_stacks, shared_server, tmp_path):
    """The place that is measured is the last before both texts generate another token; the text follows the source."""
    shutil.copytree(two_stacks / "bart", tmp_path / "bart")
    path = tmp_path / "bart" / "1" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    known = tokenizer["model"]["vocab"]
    known |= {f"word{i}": i for i in {*range(60)} - {*known.values()}}  # each generated token has a text
    path.write_text(json.dumps(tokenizer))
    texts = [f"the animal did not cross the street because it was too {word}" for word in ("animal", "the", "cross")]
    url = shared_server(tmp_path).url
    with httpx.Client(base_url=url, timeout=60) as client:
        answers = [client.post("/v1/generate/bart", json={"text": text}).json() for text in texts]
    words = [[token["text"] for token in answer["generated"]] for answer in answers]
    alike = next(i for i, (one, other) in enumerate(zip(*words[:2], strict=True)) if one != other)
    assert alike > 0
    patch = json.dumps({"source": texts[1]})
    page = open_page(urlencode({"model": "bart", "view": "patch", "text": texts[0], "patch": patch}), url=url)
    decoder, after = page.get_by_role("textbox", name="text of the decoder"), page.get_by_role("combobox", name="after")
    expect(page.locator(".ending[role=status]")).to_contain_text("places measured")
    expect(decoder).to_have_value("")
    expect(decoder).to_have_attribute("placeholder", "".join(words[0]))
    expect(after).to_have_value(str(alike))
    expect(page.get_by_role("combobox", name="at", exact=True)).to_have_value("encoder_hidden")
    page.get_by_role("textbox", name="text", exact=True).fill(texts[2])
    expect(decoder).to_have_attribute("placeholder", "".join(words[2]))
    page.get_by_role("tab", name="Lens").click()
    expect(page.locator(".lens thead")).to_contain_text(words[2][0].strip())
    page.get_by_role("tab", name="Head").click()
    expect(decoder).to_have_attribute("placeholder", "the same text")
    decoder.fill("the cat")
    page.get_by_role("tab", name="Patch").click()
    expect(decoder).to_have_value("the cat")
    expect(after).to_have_value("")  # the last
