"""The page /docs, and the documentation at /docs/guide, where it is installed."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from service import docs_site
from service.app import create_app
from service.base.errors import codes
from service.settings import Settings


@pytest.fixture
def client(tmp_path, monkeypatch):
    """A client of an application with ``settings``, beside a site of a page and a style."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<title>the first page</title>")
    (tmp_path / "assets" / "guide.css").write_text("p {}")
    monkeypatch.setattr(docs_site, "FOLDERS", (tmp_path / "missing", tmp_path))
    return lambda **settings: TestClient(create_app(Settings(**settings)), follow_redirects=False)


@pytest.mark.parametrize(
    ("path", "content", "media"),
    [
        ("", "url=/docs/guide/index.html", "html"),  # no redirect
        ("/", "url=/docs/guide/index.html", "html"),
        ("/index.html", "<title>the first page</title>", "html"),
        ("/assets/guide.css", "p {}", "css"),
    ],
)
def test_pages_and_their_files_are_served(client, path, content, media):
    answer = client().get(f"/docs/guide{path}")
    assert answer.status_code == 200
    assert content in answer.text
    assert answer.headers["content-type"] == f"text/{media}; charset=utf-8"


@pytest.mark.parametrize("path", ["nothing.html", "assets", "../secret", "%2e%2e/secret"])
def test_nothing_else_is(client, path, tmp_path):
    (tmp_path.parent / "secret").write_text("what nobody may read")
    answer = client().get(f"/docs/guide/{path}")
    assert answer.status_code == 404
    assert "nobody" not in answer.text


def test_it_is_off_or_guarded_with_the_documentation(client, tmp_path):
    assert client(pages="viewer").get("/docs/guide/index.html").status_code == 404
    (tmp_path / "keys").write_text("the-key\n")
    guarded = client(api_keys_file=tmp_path / "keys")
    assert guarded.get("/docs/guide/index.html").status_code == 401
    assert guarded.get("/docs/guide/index.html", headers={"X-API-Key": "the-key"}).status_code == 200


def test_without_a_site_the_type_of_a_problem_still_leads_to_its_meaning(monkeypatch):
    monkeypatch.setattr(docs_site, "FOLDERS", (Path("/nonexistent"),))
    client = TestClient(create_app(Settings()))
    problem = client.get("/nothing").json()
    page, _, code = problem["type"].partition("#")
    assert f"<dt id={code}><code>not_found</code><dd>Unknown block" in client.get(page).text
    assert client.get(page).text.count("<dt id=") == len(codes())
    assert client.get("/docs/guide/index.html").status_code == 404


def test_the_page_of_the_api_is_open_and_asks_for_the_key_that_its_document_needs(client, tmp_path):
    (tmp_path / "keys").write_text("the-key\n")
    guarded = client(api_keys_file=tmp_path / "keys")
    for path in ("/docs", "/docs/", "/static-offline-docs/swagger-ui.css"):
        assert guarded.get(path).status_code == 200
    assert "prompt(" in guarded.get("/docs").text
    assert guarded.get("/openapi.json").status_code == 401
    assert "prompt(" not in client().get("/docs").text
