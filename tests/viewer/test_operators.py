"""What operators see of the viewer: the state of the server, API keys, settings, and what the page may not do."""

import json
import re
import shutil

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.support.server import serving
from tests.viewer.pages import drawn

KEY = "a-key-of-this-test"


@pytest.fixture
def locked(viewer_repository, tmp_path):
    (tmp_path / "keys").write_text(f"{KEY}\n")
    with serving(viewer_repository, "--api-keys-file", str(tmp_path / "keys")) as client:
        yield client


def test_the_server_panel(open_page):
    page = open_page("model=bert&text=the")
    page.get_by_role("button", name="Server").click()
    panel = page.get_by_role("region", name="server")
    expect(panel).to_contain_text(re.compile(r"heed \d+\.\d+\.\d+, cpu"))
    expect(panel.get_by_role("row", name=re.compile("multi_head"))).to_contain_text("READY")
    expect(panel.get_by_role("row", name=re.compile("multi_head"))).to_contain_text("random demonstration weights")
    for name in ("API", "metrics", "V2"):
        assert page.request.get(panel.get_by_role("link", name=name, exact=True).evaluate("link => link.href")).ok


def test_the_server_panel_counts_memories(open_page, viewer):
    def shown():
        page = open_page("model=bert&text=the")
        page.get_by_role("button", name="Server").click()
        return page.get_by_role("region", name="server")

    limit = viewer.get("/v1/memories").json()["limit_bytes"]
    expect(shown()).to_contain_text(f"0 memories, 0 bytes of {limit / 2**20:.0f} MiB")
    memory = viewer.post("/v1/memories", json={"key": [[1, 2]], "value": [[3]]}).json()
    try:
        expect(shown()).to_contain_text(f"1 memory, {memory['bytes']} bytes of")
    finally:
        viewer.delete(f"/v1/memories/{memory['id']}")


def test_a_key_is_asked_for_and_stays_in_the_tab(locked, open_page):
    url = str(locked.base_url).rstrip("/")
    page = open_page("model=bert&text=the+cat", url=url, expected="401")
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="use it").click()
    expect(page.get_by_role("alert").first).to_contain_text("unknown API key")
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="use it").click()
    expect(page.locator(".thumbnail")).to_have_count(4)
    assert KEY not in page.url
    page.get_by_role("tab", name="Matrix").click()
    page.get_by_text("Take it along").click()
    for name in ("JSON", "HTML page"):
        with page.expect_download() as download:
            page.get_by_role("button", name=name, exact=True).click()
        assert KEY not in download.value.path().read_text()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="copy as curl").click()
    expect(page.locator(".take [role=status]")).to_have_text("curl copied")
    assert "$HEED_API_KEY" in page.evaluate("navigator.clipboard.readText()")
    assert page.evaluate("localStorage.length") == 0


def test_it_can_be_switched_off_and_framed(repository, tmp_path):
    shutil.copytree(repository / "additive", tmp_path / "additive")
    with serving(tmp_path, "--no-viewer") as client:
        assert client.get("/").status_code == 404
        assert client.get("/viewer/main.js").status_code == 404
    with serving(tmp_path, "--viewer-frame-ancestors", "https://a.example") as client:
        assert client.get("/").headers["content-security-policy"].endswith("frame-ancestors https://a.example")


def test_the_policy_lets_nothing_in(viewer):
    response = viewer.get("/")
    policy = response.headers["content-security-policy"]
    assert response.status_code == 200
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    assert policy.endswith("frame-ancestors 'none'")
    assert viewer.get("/viewer/main.js").headers["content-security-policy"] == policy
    imports = json.loads(re.search(r'<script type="importmap">(.*?)</script>', response.text)[1])["imports"]
    for path in imports.values():
        assert "immutable" in viewer.get(path.removeprefix(".")).headers["cache-control"]
    for path in ("/", "/viewer/main.js", "/viewer/main.js?v=another", "/viewer/server/example.json"):
        assert viewer.get(path).headers["cache-control"] == "no-cache"
    for path in ("/viewer/%2e%2e/client.py", "/viewer/", "/viewer/no-such.js"):
        assert viewer.get(path).status_code == 404


def test_a_token_is_text(open_page):
    page = open_page("model=bert&text=%3Cscript%3Ealert(1)%3C/script%3E+cat&view=tokens&query=1")
    expect(page.locator(".selection")).to_contain_text("looks at")
    assert page.locator("body script").count() == 0


def test_axe_finds_no_serious_violation(open_page):
    page = open_page("model=bert&text=the+cat+sat")
    rules = {"light": {}, "dark": {"runOnly": ["color-contrast"]}}  # no other rule asks for the theme
    for view in ("Model", "Head", "Matrix", "Tokens", "Compare", "Ablate"):
        page.get_by_role("tab", name=view).click()
        expect(page.locator("#view :is(canvas, .chip)").first).to_be_visible()
        page.wait_for_function("() => document.querySelectorAll('[aria-busy=true]').length === 0")
        for theme, options in rules.items():
            page.emulate_media(color_scheme=theme)
            drawn(page)
            violations = Axe().run(page, options=options).response["violations"]
            serious = [
                (found["id"], found["nodes"][0]["html"])
                for found in violations
                if found["impact"] in ("serious", "critical")
            ]
            assert not serious, (view, theme)


def test_a_phone(open_page):
    page = open_page("model=bert&text=the+cat+sat+on+the+mat", width=390, height=800, has_touch=True)
    for view in ("Model", "Head", "Matrix", "Tokens", "Compare"):
        page.get_by_role("tab", name=view).tap()
        expect(page.get_by_role("tabpanel")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_tabs_by_keyboard(open_page):
    page = open_page("model=bert&text=the+cat+sat")
    page.get_by_role("tab", name="Model").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Head")).to_be_focused()
    expect(page.get_by_role("tab", name="Head")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") in ("SUMMARY", "SELECT")


def test_the_models_are_told_apart_by_their_weights(open_page):
    page = open_page()
    choice = page.get_by_role("combobox", name="model", exact=True)
    groups = {"trained": ["bert"], "random demonstration weights": ["multi_head"], "without learned weights": []}
    for label, models in groups.items():
        group = choice.locator(f"optgroup[label='{label}']")
        for model in [*models, *(["scaled_dot_product"] if not models else [])]:
            expect(group.locator(f"option[value={model}]")).to_have_count(1)
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
