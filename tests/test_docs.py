"""docs/ is true: its files, settings and statuses exist, and its picture shows every package."""

import re
from pathlib import Path

import pytest

from service import errors
from service.settings import Settings
from tests.support.families import FAMILIES, REFUSED

ROOT = Path(__file__).parents[1]
PAGES = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@pytest.mark.parametrize("page", PAGES)
def test_every_file_it_names_exists(page):
    names = [name for name in CODE.findall(PAGES[page]) if re.fullmatch(r"[\w.]+/[\w./]*|\w+\.(py|toml)", name)]
    links = re.findall(r"\]\(([^):]+)\)", PAGES[page])
    missing = [name for name in names if not (ROOT / name).exists()]
    missing += [link for link in links if not (ROOT / "docs" / link).exists()]
    assert not [name for name in missing if name not in ("model_repository/",)]


@pytest.mark.parametrize("page", PAGES)
def test_every_setting_it_names_exists(page):
    assert {name.lower() for name in re.findall(r"HEED_(\w+)", PAGES[page])} <= Settings.model_fields.keys()


def test_the_picture_shows_every_package_of_the_service():
    picture = re.search(r"```mermaid\n(.*?)```", PAGES["architecture.md"], re.DOTALL)[1]
    for package in (ROOT / "service").glob("*/__init__.py"):
        assert re.search(rf"\b{package.parent.name}\b", picture), package
        assert f"`service/{package.parent.name}/`" in PAGES["architecture.md"]


def test_every_error_is_in_the_table_with_its_statuses():
    rows = re.findall(r"\| `(\w+)` \| (\d+) \| (\d+) \|", PAGES["errors.md"])
    classes = [of for of in vars(errors).values() if isinstance(of, type) and issubclass(of, errors.HeedError)]
    assert sorted(rows) == sorted(
        (of.__name__, str(of.status), str(of.v2_status)) for of in classes if of is not errors.HeedError
    )


def test_the_readme_links_to_every_page():
    readme = (ROOT / "README.md").read_text()
    assert set(re.findall(r"docs/([\w.]+\.md)", readme)) == set(PAGES)


def test_the_matrix_of_transformers_is_the_one_that_is_tested():
    page = PAGES["transformers.md"]
    matrix = re.findall(r"^\| ([^|`]+) \| `(\w+)` \|$", page, re.MULTILINE)
    assert matrix == [(name, family.model) for name, family in FAMILIES.items()]
    refused = re.findall(r"^\| ([^|`]+): `(\w+)` \|", page, re.MULTILINE)
    assert refused == [(name, family.model) for name, (family, _) in REFUSED.items()]
