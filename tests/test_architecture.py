"""What docs/architecture.md says of the packages of service/, compared with the code."""

import importlib
import inspect
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import grimp
import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.http.connection import RequestState
from service.http.fast_path import FastProtocol

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PICTURE = re.search(r"```mermaid\n(.*?)```", PAGE, re.DOTALL)[1]
LABELS = dict(re.findall(r'(\w+)\["(.*?)"\]', PICTURE))
EDGES = {tuple(re.findall(r"(\w+)(?:\[.*?\])?(?: -->|$)", line.strip())) for line in PICTURE.splitlines()[1:]}


def parts_of(node: str) -> set[str]:
    """The packages and modules that a node of the picture stands for."""
    return set(re.findall(r"(\w+)\.py", LABELS.get(node, ""))) or {node}


NODES = {part: node for node in {node for edge in EDGES for node in edge} for part in parts_of(node)}


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Of each package or module in service/, those that it imports."""
    graph, found = grimp.build_graph("service", cache_dir=None), defaultdict(set)
    for name in graph.modules - {"service", "service.__main__"}:
        part = name.split(".")[1]
        others = {other.split(".")[1] for other in graph.find_modules_directly_imported_by(name) if "." in other}
        found[part] |= others - {part}
    return found


def below(node: str) -> set[str]:
    """The nodes to which arrows lead from ``node``, over others too."""
    found, waiting = set(), [node]
    while waiting:
        start = waiting.pop()
        following = {end for begin, end in EDGES if begin == start} - found
        found |= following
        waiting += following
    return found


def test_the_picture_has_every_package_and_module(imports):
    assert NODES.keys() == imports.keys()


def test_every_import_follows_the_arrows(imports):
    against = [
        (part, other)
        for part, others in imports.items()
        for other in others
        if NODES[other] not in below(NODES[part]) | {NODES[part]}
    ]
    assert against == []


def test_every_arrow_is_an_import(imports):
    drawn = {(begin, end): {other for part in parts_of(begin) for other in imports[part]} for begin, end in EDGES}
    assert [edge for edge, others in drawn.items() if others.isdisjoint(parts_of(edge[1]))] == []


def test_there_are_twelve_floors(imports):
    @cache
    def floor(part: str) -> int:
        return 1 + max(map(floor, imports[part]), default=0)

    assert max(map(floor, [*imports])) == 12


def test_every_file_that_is_named_exists():
    names = re.findall(r"`((?:service|export|models|deploy|tests|loadtest|clients)/[\w./]*)`", PAGE)
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_the_path_of_a_request_has_three_calls():
    calls = re.search(r"there are\s+three calls: (.*?)\.\n", PAGE)[1]
    named = re.findall(r"`(\w+)\.(\w+)`", calls)
    assert named == [("InferenceEndpoint", "__call__"), ("Engine", "run"), ("Engine", "run_inline"), ("Model", "run")]
    modules = {"InferenceEndpoint": "inference.endpoint", "Engine": "engine.engine", "Model": "model.model"}
    for name, method in named:
        assert inspect.isroutine(getattr(getattr(importlib.import_module(f"service.{modules[name]}"), name), method))


def test_the_table_of_request_states_names_each_place_that_changes_one():
    classes = FastProtocol.__mro__[: FastProtocol.__mro__.index(HttpToolsProtocol)]
    changed_in = {
        name
        for kind in classes
        for name, function in vars(kind).items()
        if inspect.isfunction(function) and re.search(r"self\._state(, .*?)? = ", inspect.getsource(function))
    }
    assert changed_in - {"__init__"} == set(re.findall(r"``(\w+)``$", inspect.getdoc(RequestState), re.MULTILINE))
