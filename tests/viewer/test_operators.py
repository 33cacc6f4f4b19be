"""What operators see of the viewer: the state of the server, API keys, and whom the page keeps out."""

import re

import pytest
from playwright.sync_api import expect

from tests.viewer.pages import copied, drawn, take, violations

KEY = "a-key-of-this-test"


def test_the_server_panel(open_page, viewer):
    def panel():
        page = open_page("model=bert&text=the")
        page.get_by_role("button", name="Server").click()
        return page.get_by_role("region", name="server")

    server = panel()
    expect(server).to_contain_text(re.compile(r"heed \d+\.\d+\.\d+, cpu"))
    for said in ("READY", "random demonstration weights"):
        expect(server.get_by_role("row", name=re.compile("multi_head"))).to_contain_text(said)
    for name in ("API", "metrics", "V2"):
        link = server.get_by_role("link", name=name, exact=True)
        assert server.page.request.get(link.evaluate("link => link.href")).ok
    limit = viewer.get("/v1/memories").json()["limit_bytes"]
    expect(server).to_contain_text(f"0 memories, 0 bytes of {limit / 2**20:.0f} MiB")
    memory = viewer.post("/v1/memories", json={"key": [[1, 2]], "value": [[3]]}).json()
    try:
        expect(panel()).to_contain_text(f"1 memory, {memory['bytes']} bytes of")
    finally:
        viewer.delete(f"/v1/memories/{memory['id']}")


@pytest.fixture(scope="module")
def locked(shared_server, viewer_repository, tmp_path_factory) -> str:
    """The URL of a server that wants ``KEY``."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{KEY}\n")
    return shared_server(viewer_repository, "--api-keys-file", str(keys)).url


def test_a_key_is_asked_for_at_first_and_later_and_stays_in_the_tab(locked, open_page):
    page = open_page("model=bert&text=the+cat", url=locked, expected="401")
    key, use = page.get_by_label("API key"), page.get_by_role("button", name="use this key")
    expect(page.get_by_text("Nothing to show: an API key is needed")).to_be_visible()
    assert page.locator("body").inner_text().count("Authorization: Bearer") == 1
    key.fill("wrong")
    use.click()
    expect(page.get_by_role("alert").first).to_contain_text("unknown API key")
    key.fill(KEY)
    use.click()
    expect(page.locator(".thumbnail")).to_have_count(4)
    page.route("**/infer", lambda route: route.fulfill(status=401, json={"error": "unknown API key"}))
    page.get_by_role("textbox", name="text", exact=True).fill("the cat sat")
    key.wait_for()
    page.unroute("**/infer")
    key.fill(KEY)
    use.click()
    expect(key).to_have_count(0)
    page.get_by_role("tab", name="Head").click()
    expect(page.get_by_role("tabpanel")).to_contain_text("sat")
    assert KEY not in page.url
    page.get_by_role("tab", name="Matrix").click()
    for name in ("JSON", "HTML page"):
        assert KEY not in take(page, name).path().read_text()
    assert "$HEED_API_KEY" in copied(page, "curl")
    assert KEY not in page.evaluate("JSON.stringify(localStorage)")


def test_the_page_of_the_api_asks_for_the_key(locked, browser):
    page, asked = browser.new_page(), []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept(["wrong", KEY][len(asked) - 1])))
    page.goto(f"{locked}/docs")
    expect(page.get_by_text("/v1/attention/bert").first).to_be_visible()
    assert asked == ["This server needs an API key", "This server needs an API key, and does not know this one"]
    page.close()


def test_a_token_is_text(open_page):
    page = open_page("model=bert&text=%3Cscript%3Ealert(1)%3C/script%3E+cat&view=tokens&query=1")
    expect(page.locator(".selection")).to_contain_text("looks at")
    assert page.locator("body script").count() == 0


def test_axe_finds_no_violation_and_a_phone_need_not_scroll_sideways(open_page):
    page = open_page("model=bert&text=the+cat+sat+on+the+mat")
    rules = {"light": {}, "dark": {"runOnly": ["color-contrast"]}}  # no other rule asks for the theme
    for view in ("Model", "Head", "Matrix", "Tokens", "Compare", "Ablate", "Neurons"):
        page.get_by_role("tab", name=view).click()
        expect(page.locator("#view :is(canvas, .chip)").first).to_be_visible()
        page.wait_for_function("() => document.querySelectorAll('[aria-busy=true]').length === 0")
        for theme, options in rules.items():
            page.emulate_media(color_scheme=theme)
            drawn(page)
            assert not violations(page, **options), (view, theme)
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            drawn(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_models_are_told_apart_by_their_weights(open_page):
    page = open_page()
    choice = page.get_by_role("combobox", name="model", exact=True)
    groups = {
        "exported models": "bert",
        "random demonstration weights": "multi_head",
        "without learned weights": "scaled_dot_product",
    }
    for label, model in groups.items():
        expect(choice.locator(f"optgroup[label='{label}'] option", has_text=re.compile(rf"^{model}\b"))).to_have_count(
            1
        )
    choice.select_option("multi_head")
    expect(page.get_by_role("region", name="input")).to_contain_text("Weights: random demonstration weights")


def test_one_weight_is_announced(open_page):
    page = open_page("model=bert&text=the+cat+sat&view=matrix&query=1&key=2")
    status = page.locator(".selection [role=status]")
    weight = page.locator(".selection .value").first
    expect(weight).to_be_visible()
    expect(status).to_have_text(f"“the” looks at “cat”: {weight.inner_text()}")
    page.locator(".heat-map [role=application]").press("ArrowRight")
    expect(status).to_contain_text("“the” looks at “sat”")
    expect(page.locator(".selection li")).to_have_count(5)
