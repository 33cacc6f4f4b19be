"""The Grafana dashboard and the scrape configuration fit what a real server exports."""

import json
import re
from contextlib import closing
from pathlib import Path

import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from service.settings import Settings
from tests.support.http_client import ADD, Connection
from tests.support.server import started

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana/heed.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
SCRAPER_S = {"job", "instance"}  # labels that Prometheus adds


@pytest.fixture(scope="module")
def exported(models, tmp_path_factory) -> dict[str, set[str]]:
    """Every name that /metrics tells, and its labels."""
    log = tmp_path_factory.mktemp("log") / "log"
    with started(models, log, "--workers", "1") as service, closing(Connection(service.port)) as connection:
        connection.ask("/v2/models/adder/infer", ADD)
        families = text_string_to_metric_families(connection.ask("/metrics").decode())
        return {sample.name: sample.labels.keys() | SCRAPER_S for family in families for sample in family.samples}


def parsed(expression: str) -> promql.Expr:
    return promql.parse(expression.replace("$__rate_interval", "1m"))


def nodes(expression: promql.Expr) -> list[promql.Expr]:
    """The expression and all it is made of."""
    found = []
    promql.walk(expression, lambda node: found.append(node) or True)
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_ask_for_what_is_exported(exported, expression):
    found = nodes(parsed(expression))
    selectors = [node for node in found if isinstance(node, promql.VectorSelector)]
    assert selectors
    for selector in selectors:
        assert selector.name in exported
        assert {matcher.name for matcher in selector.matchers.matchers} <= exported[selector.name]
    for node in found:
        if isinstance(node, promql.AggregateExpr) and node.modifier:
            for within in nodes(node):
                if isinstance(within, promql.VectorSelector):
                    assert set(node.modifier.labels) <= exported[within.name]


def test_every_metric_is_shown(exported):
    families = {re.sub("_(bucket|count|sum)$", "", name) for name in exported}
    shown = {name for name in families if any(name in expression for expression in EXPRESSIONS)}
    assert shown == families


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_legends_name_labels_that_are_there(exported, panel):
    for target in panel["targets"]:
        labels = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        sums = [node for node in nodes(parsed(target["expr"])) if isinstance(node, promql.AggregateExpr)]
        kept = {label for node in sums if node.modifier for label in node.modifier.labels}
        assert labels <= (kept if sums else SCRAPER_S)


def test_variables_are_defined_and_ask_for_what_is_exported(exported):
    used = set(re.findall(r"\$(\w+)", " ".join(EXPRESSIONS))) - {"__rate_interval"}
    assert used <= VARIABLES.keys()
    for variable in VARIABLES.values():
        if variable["type"] == "query":
            selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
            assert label in exported[promql.parse(selector).name]


def test_panels_stand_apart():
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    spans = [(range(of["x"], of["x"] + of["w"]), range(of["y"], of["y"] + of["h"])) for of in places]
    cells = [(x, y) for across, down in spans for x in across for y in down]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_scrape_configuration_is_of_the_default_address():
    (job,) = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    default = Settings.model_fields
    assert job["static_configs"] == [{"targets": [f"{default['host'].default}:{default['port'].default}"]}]
    assert job.get("metrics_path", "/metrics") == "/metrics"
