"""docs/ is true: its files, settings and statuses exist, its picture shows every package, and the site is complete."""

import re
from html import unescape
from pathlib import Path

import pytest

from models.catalogue import BLOCKS
from scripts.guide.blocks import USES
from service.base import errors
from service.settings import Settings
from service.telemetry.families import FAMILIES as METRICS
from tests.support.families import FAMILIES, REFUSED

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(DOCS)): path.read_text() for path in DOCS.rglob("*.md")}
BASES = (ROOT, ROOT / "examples", ROOT / "deploy", ROOT / "deploy" / "kubernetes")
OTHERS = ("model_repository/", "build/", "wheels/", "adder/", "nvidia.com/")  # the reader's files, and no files
COMPOSE = [ROOT / "docker-compose.yml", *(ROOT / "deploy" / "compose").glob("*.yml")]
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_setting_it_names_exists(page):
    names = [name for name in CODE.findall(PAGES[page]) if re.fullmatch(r"[\w.]+/[\w./]*|\w+\.(py|toml)", name)]
    names = [name for name in names if not name.startswith((*OTHERS, "..."))]
    assert not [name for name in names if not any((base / name).exists() for base in BASES)]
    others = {"URL", "API_KEY"}.union(*(re.findall(r"\$\{HEED_(\w+)", path.read_text()) for path in COMPOSE))
    settings = set(re.findall(r"HEED_(\w+)", PAGES[page])) - others
    assert {name.lower() for name in settings} <= Settings.model_fields.keys()


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_for_those_who_read_the_files(page):
    """Pages of blocks, which are made, are not linked to; placeholders say what to do without the site."""
    links = re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", CODE.sub("", PAGES[page]))
    assert not [link for link in links if not (DOCS / page).parent.joinpath(link).exists()]
    assert not re.search(r"^\{\{|^<!-- \w+ -->$", PAGES[page], re.MULTILINE)


def test_a_container_without_a_writable_disk_can_store_memories():
    pages = "\n".join([*PAGES.values(), (ROOT / "README.md").read_text()])
    commands = re.findall(r"^docker run .*--read-only.*", pages, re.MULTILINE)
    assert len(commands) == 5
    assert all("--tmpfs /tmp " in command for command in commands)


def test_the_picture_shows_every_package_of_the_service():
    picture = re.search(r"```mermaid\n(.*?)```", PAGES["architecture.md"], re.DOTALL)[1]
    for package in (ROOT / "service").glob("*/__init__.py"):
        assert re.search(rf"\b{package.parent.name}\b", picture), package
        assert f"`service/{package.parent.name}/`" in PAGES["architecture.md"]


def test_every_error_is_in_the_table_with_its_statuses():
    rows = re.findall(r'\| <span id="(\w+)">`\1`</span> \| (\d+) \| (\d+) \|', PAGES["errors.md"])
    classes = [of for of in vars(errors).values() if isinstance(of, type) and issubclass(of, errors.HeedError)]
    assert sorted(code for code, *_ in rows) == errors.codes()
    assert {(of.code, str(of.status), str(of.v2_status)) for of in classes} <= set(rows)


def test_the_matrix_of_transformers_is_the_one_that_is_tested():
    page = PAGES["transformers.md"]
    matrix = re.findall(r"^\| ([^|`]+) \| `(\w+)` \|$", page, re.MULTILINE)
    assert matrix == [(name, family.model) for name, family in FAMILIES.items()]
    refused = re.findall(r"^\| ([^|`]+): `(\w+)` \|", page, re.MULTILINE)
    assert refused == [(name, family.model) for name, (family, _) in REFUSED.items()]


@pytest.mark.extended
def test_the_site_is_built_without_a_warning_and_fetches_nothing(guide):
    assert (guide / "log").read_text() == ""
    for page in guide.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|iframe)[^>]* src=\"?([^\" >]+)|<link[^>]* href=\"?([^\" >]+)", page.read_text()
        )
        assert not [url for urls in loaded for url in urls if url.startswith(("http", "//"))], page


@pytest.mark.extended
def test_every_setting_and_metric_is_in_the_site(guide):
    text = text_of(guide / "settings.html")
    for name, field in Settings.model_fields.items():
        default = "" if field.default in ("", None) else str(field.default)
        assert f"HEED_{name.upper()} {default}".strip() in text
        assert " ".join(field.description.split()) in text
    text = text_of(guide / "metrics.html")
    for name, family in METRICS.items():
        assert f"{name}{'_total' * (family.kind == 'counter')} {family.kind}" in text
        assert family.help in text


@pytest.mark.extended
@pytest.mark.parametrize("name", BLOCKS)
def test_the_page_of_a_block_has_all_of_its_description(guide, name):
    block, page = BLOCKS[name], guide / "blocks" / f"{name}.html"
    text = text_of(page)
    for words in (block.title, block.description, *block.inputs, *block.outputs, f"POST /v1/attention/{name}"):
        assert words in text
    assert " ".join(block.formula.split()) in text
    assert USES[name].split("`")[0].strip() in text
    assert page.read_text().count("<svg viewBox") >= 1 + ("is_causal" in block.inputs)


def text_of(page: Path) -> str:
    """The text of a page, with single blanks."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page.read_text())).split())
