"""The first thing that one sees, without a keystroke, and where the page's files come from."""

from playwright.sync_api import expect


def test_it_opens_on_a_sentence_that_is_drawn(open_page):
    page = open_page()
    expect(page.get_by_role("status")).to_contain_text("“it” (10) looks at “animal” (2)")
    expect(page.get_by_role("combobox", name="model")).to_have_value("scaled_dot_product")


def test_a_sentence_of_ones_own(open_page):
    page = open_page("model=bert&text=the+cat+sat")
    expect(page.locator(".thumbnail")).to_have_count(4)
    page.get_by_role("textbox", name="text", exact=True).fill("the cat sat on the mat")
    page.locator(".thumbnail").nth(1).click()
    expect(page.get_by_role("tab", name="Head")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("tabpanel")).to_contain_text("mat")


def test_the_policy_lets_nothing_in(viewer):
    response = viewer.get("/")
    policy = response.headers["content-security-policy"]
    assert response.status_code == 200
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    assert viewer.get("/viewer/main.js").headers["content-security-policy"] == policy
    assert viewer.get("/viewer/../pyproject.toml").status_code == 404
    assert viewer.get("/viewer/%2e%2e/client.py").status_code == 404
