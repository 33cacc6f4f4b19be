"""The view Steps: the numbers from two vectors to a weight and an output, for blocks of which they are true."""

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.support.waiting import until
from tests.viewer.pages import attend, paste, softmax

QUERY = [[1.0, 2.0, -0.5], [0.5, -1.0, 0.25]]
KEY = [[0.3, 1.0, 0.0], [-2.0, 0.1, 1.0], [0.7, 0.7, 0.7]]
VALUE = [[1.0, -1.0], [2.0, 0.5], [0.0, 3.0]]
ERROR = 2e-6


def number(page, label):
    value = page.locator(".steps").get_by_label(label, exact=True).get_attribute("value")
    return float(value.replace("Infinity", "inf"))


def wait_for(page, label, value):
    value_of = page.locator(".steps").get_by_label(label, exact=True)
    until(lambda: value_of.count() and abs(number(page, label) - value) < ERROR)


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
    steps = {
        "sum of the products": q[1] @ k[2],
        "times scale": q[1] @ k[2] * 0.8,
        "softcap": capped[1, 2],
        "mask": scores[1, 2],
        "score": scores[1, 2],
    }
    assert {label: number(page, label) for label in steps} == pytest.approx(steps, abs=ERROR)
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


def test_other_scores_are_no_dot_products(open_page, heed):
    request = {**heed.describe("additive").example, "outputs": ["scores", "weights", "output"]}
    answer = heed.attend("additive", **request)
    page = open_page("model=additive&view=steps&query=0&key=0")
    wait_for(page, "weight", answer.weights.ravel()[0])
    assert number(page, "score") == pytest.approx(answer.scores.ravel()[0], abs=ERROR)
    np.testing.assert_allclose(cells(page, "output"), answer.output[0, 0], atol=ERROR)
    expect(page.get_by_label("sum of the products")).to_have_count(0)
    expect(page.get_by_role("list", name="products")).to_have_count(0)
    expect(page.get_by_role("tab", name="Ablate")).to_have_count(0)  # it has no head mask


def test_a_head_that_is_switched_off_and_blocks_of_which_the_steps_are_not_true(open_page, heed):
    request = {**heed.describe("multi_head").example, "outputs": ["weights"]}
    heads = heed.attend("multi_head", **request).weights.shape[1]
    masked = heed.attend("multi_head", **request, head_mask=[[0 if head == 1 else 1 for head in range(heads)]])
    page = open_page("model=multi_head&view=steps&query=0&key=0&head=1&ablated=[[0,1]]")
    wait_for(page, "weight", masked.weights[0, 1, 0, 0])
    page = open_page("model=multi_head&view=steps&query=0&key=0&head=1")
    expect(page.locator(".steps").get_by_label("weight", exact=True)).not_to_have_text("0")
    expect(page.get_by_role("tabpanel")).to_contain_text("computes its output differently")
    expect(page.get_by_role("list", name="products")).to_have_count(0)
    page.goto(page.url.partition("#")[0] + "#model=encoder&view=steps")  # without query and key
    expect(page.get_by_role("tab", name="Steps")).to_have_count(0)
    expect(page.get_by_role("tab", name="Ablate")).to_be_visible()
