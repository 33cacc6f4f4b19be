"""The view Steps: the numbers from two vectors to a weight and an output, for blocks of which they are true."""

import json
import re

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.viewer.numbers import attend, softmax

QUERY = [[1.0, 2.0, -0.5], [0.5, -1.0, 0.25]]
KEY = [[0.3, 1.0, 0.0], [-2.0, 0.1, 1.0], [0.7, 0.7, 0.7]]
VALUE = [[1.0, -1.0], [2.0, 0.5], [0.0, 3.0]]
ERROR = 2e-6


def paste(page, **request):
    page.get_by_role("radio", name="file or JSON").check()
    page.get_by_role("textbox", name="JSON").fill(json.dumps(request))
    shape = " × ".join(str(size) for size in (1, 1, *np.shape(request["query"]))[-4:])
    expect(page.get_by_role("list", name="tensors that are given")).to_contain_text(f"query {shape}")


def number(page, label):
    value = page.locator(".steps").get_by_label(label, exact=True).get_attribute("value")
    return float(value.replace("Infinity", "inf"))


def wait_for(page, label, value):
    for _ in range(100):
        if page.locator(".steps").get_by_label(label, exact=True).count() and abs(number(page, label) - value) < ERROR:
            return
        page.wait_for_timeout(50)
    assert number(page, label) == pytest.approx(value, abs=ERROR)


def cells(page, label):
    items = page.get_by_role("list", name=label, exact=True).locator("data")
    return np.array([float(item.get_attribute("value")) for item in items.all()])


def test_each_step_of_a_pair(open_page):
    page = open_page("model=scaled_dot_product&view=steps&query=1&key=2")
    paste(page, query=QUERY, key=KEY, value=VALUE, scale=0.8, softcap=1.5, attn_mask=[[0.0, 0.1, 0.2]] * 2)
    q, k, v = np.array(QUERY), np.array(KEY), np.array(VALUE)
    capped = 1.5 * np.tanh(q @ k.T * 0.8 / 1.5)
    scores = capped + np.array([0.0, 0.1, 0.2])
    weights = softmax(scores)
    wait_for(page, "weight", weights[1, 2])
    np.testing.assert_allclose(cells(page, "products"), q[1] * k[2], atol=ERROR)
    assert number(page, "sum of the products") == pytest.approx(q[1] @ k[2], abs=ERROR)
    assert number(page, "times scale") == pytest.approx(q[1] @ k[2] * 0.8, abs=ERROR)
    assert number(page, "softcap") == pytest.approx(capped[1, 2], abs=ERROR)
    assert number(page, "mask") == pytest.approx(scores[1, 2], abs=ERROR)
    assert number(page, "score") == pytest.approx(scores[1, 2], abs=ERROR)
    assert number(page, "exp(score − lse)") == pytest.approx(number(page, "weight"), abs=ERROR)
    np.testing.assert_allclose(cells(page, "weight times value"), weights[1, 2] * v[2], atol=ERROR)
    np.testing.assert_allclose(cells(page, "output"), weights[1] @ v, atol=ERROR)
    expect(page.locator(".formula .katex")).to_be_visible()
    loaded = "[...document.fonts].some(({ family, status }) => family.startsWith('KaTeX') && status === 'loaded')"
    page.wait_for_function(loaded)


def test_an_edited_number_is_run_again(open_page):
    page = open_page("model=scaled_dot_product&view=steps&query=0&key=1")
    paste(page, query=QUERY, key=KEY, value=VALUE)
    q, k, v = np.array(QUERY), np.array(KEY), np.array(VALUE)
    wait_for(page, "weight", attend(q, k)[0, 1])
    page.get_by_role("spinbutton", name="query 2").fill("1.25")
    page.get_by_role("spinbutton", name="key 0").fill("0.5")  # before the first edit is answered
    page.get_by_role("spinbutton", name="value 1").fill("-4")
    q[0, 2], k[1, 0], v[1, 1] = 1.25, 0.5, -4
    wait_for(page, "weight", attend(q, k)[0, 1])
    np.testing.assert_allclose(cells(page, "output"), attend(q, k)[0] @ v, atol=ERROR)


def test_grouped_heads_and_a_masked_key(open_page):
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((1, 4, 2, 3)), rng.standard_normal((1, 2, 3, 3)), rng.standard_normal((1, 2, 3, 2))
    page = open_page("model=scaled_dot_product&view=steps&query=1&key=0&head=3")
    paste(page, query=q.tolist(), key=k.tolist(), value=v.tolist(), is_causal=True)
    weights = attend(q[0, 3, 1:], k[0, 1, :2])[0]
    wait_for(page, "weight", weights[0])
    assert number(page, "sum of the products") == pytest.approx(q[0, 3, 1] @ k[0, 1, 0], abs=ERROR)
    np.testing.assert_allclose(cells(page, "output"), weights @ v[0, 1, :2], atol=ERROR)
    page.get_by_role("tabpanel").get_by_role("combobox", name="key").select_option("2")
    wait_for(page, "weight", 0)
    assert number(page, "mask") == number(page, "score") == -np.inf
    expect(page.locator(".steps").get_by_label("score", exact=True)).to_have_text("masked")


def test_other_scores_are_no_dot_products(open_page, viewer):
    answer = viewer.post("/v1/attention/additive", json={
        **viewer.get("/v1/attention/additive").json()["example"], "outputs": ["scores", "weights", "output"],
    }).json()  # fmt: skip
    page = open_page("model=additive&view=steps&query=0&key=0")
    wait_for(page, "weight", np.array(answer["weights"]).reshape(-1)[0])
    assert number(page, "score") == pytest.approx(np.array(answer["scores"]).reshape(-1)[0], abs=ERROR)
    np.testing.assert_allclose(cells(page, "output"), np.array(answer["output"])[0, 0], atol=ERROR)
    expect(page.get_by_label("sum of the products")).to_have_count(0)
    expect(page.get_by_role("list", name="products")).to_have_count(0)


def test_projected_values_are_not_averaged(open_page):
    page = open_page("model=multi_head&view=steps&query=0&key=0")
    expect(page.get_by_role("tabpanel")).to_contain_text("computes its output in another way")
    expect(page.get_by_role("list", name="products")).to_have_count(0)


def test_models_without_query_and_key_have_no_steps(open_page):
    page = open_page("model=encoder&view=steps")
    expect(page.get_by_role("tab", name="Ablate")).to_be_visible()
    expect(page.get_by_role("tab", name="Steps")).to_have_count(0)


def test_a_head_that_is_switched_off(open_page, viewer):
    request = {**viewer.get("/v1/attention/multi_head").json()["example"], "outputs": ["weights"]}
    heads = np.array(viewer.post("/v1/attention/multi_head", json=request).json()["weights"]).shape[1]
    mask = [[0 if head == 1 else 1 for head in range(heads)]]
    masked = viewer.post("/v1/attention/multi_head", json={**request, "head_mask": mask}).json()
    page = open_page("model=multi_head&view=steps&query=0&key=0&head=1&ablated=[[0,1]]")
    wait_for(page, "weight", np.array(masked["weights"])[0, 1, 0, 0])
    page = open_page("model=multi_head&view=steps&query=0&key=0&head=1")
    expect(page.locator(".steps").get_by_label("weight", exact=True)).not_to_have_text("0")


def test_the_words_of_the_sentence_stay_when_a_number_is_edited(open_page):
    page = open_page()
    expect(page.locator(".selection")).to_contain_text("“it” (10) looks at “animal” (2)")
    page.get_by_role("tab", name="Steps").click()
    page.get_by_role("spinbutton", name="query 0", exact=True).fill("0.5")
    page.get_by_role("tab", name="Head").click()
    expect(page).not_to_have_url(re.compile("sentence=true"))
    expect(page.locator(".selection")).to_contain_text("“it” (10) looks at “")
    expect(page.locator(".special").first).to_have_attribute("title", "[CLS]")
