"""The Grafana dashboard, the alerts and the scrape configuration fit what a server exports."""

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from promql_parser import AggregateExpr

from service.settings import Settings
from service.telemetry.counters import REASONS
from service.telemetry.families import FAMILIES
from tests.support import promql
from tests.support.application import running
from tests.support.documents import PAGES
from tests.support.http_client import ADD

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana/heed.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
RULES = yaml.safe_load((DEPLOY / "prometheus/rules.yml").read_text())
ALERTS = {rule["alert"]: rule for rule in RULES["groups"][0]["rules"]}


@pytest.fixture(scope="module")
def exported(models) -> dict[str, set[str]]:
    """Every name that /metrics tells, and its labels."""
    with running(models) as client:
        client.post("/v2/models/adder/infer", content=ADD).raise_for_status()
        families = text_string_to_metric_families(client.get("/metrics").text)
        found = {sample.name: sample.labels.keys() | promql.SCRAPER for family in families for sample in family.samples}
    generating = {name: family for name, family in FAMILIES.items() if family.labels == ("model",)}
    for name, family in generating.items():  # of which this server has no samples
        for end in ("_bucket", "_count", "_sum") if family.kind == "histogram" else ("_total",):
            found[name + end] = {"model", *(["le"] if end == "_bucket" else [])} | promql.SCRAPER
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_ask_for_what_is_exported(exported, expression):
    assert promql.faults(expression) == []
    assert promql.faults(expression, exported) == []


def test_every_metric_is_shown(exported):
    families = {re.sub("_(bucket|count|sum)$", "", name) for name in exported}
    shown = {name for name in families if any(name in expression for expression in EXPRESSIONS)}
    assert shown == families


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_legends_name_labels_that_are_there(exported, panel):
    for target in panel["targets"]:
        labels = promql.legend_labels(target["legendFormat"])
        sums = [node for node in promql.nodes(promql.parsed(target["expr"])) if isinstance(node, AggregateExpr)]
        kept = {label for node in sums if node.modifier for label in node.modifier.labels}
        assert labels <= (kept if sums else promql.SCRAPER)


def test_variables_are_defined_and_ask_for_what_is_exported(exported):
    used = set(re.findall(r"\$(\w+)", " ".join(EXPRESSIONS))) - {"__rate_interval"}
    assert used <= VARIABLES.keys()
    for variable in VARIABLES.values():
        if variable["type"] == "query":
            selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
            assert label in exported[promql.parsed(selector).name]


def test_panels_stand_apart():
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    spans = [(range(of["x"], of["x"] + of["w"]), range(of["y"], of["y"] + of["h"])) for of in places]
    cells = [(x, y) for across, down in spans for x in across for y in down]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_saturation_is_shown_first():
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows[0] == "Saturation"
    assert "heed_event_loop_busy_ratio" in PANELS[0]["targets"][0]["expr"]


def test_the_scrape_configuration_is_of_a_server_with_a_monitoring_port():
    configuration = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    (job,) = configuration["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, _, port = target.rpartition(":")
    assert host == Settings.model_fields["host"].default
    assert f"heed serve --monitoring-port {port}" in PAGES["docs/metrics.md"]
    assert job.get("metrics_path", "/metrics") == "/metrics"
    assert [(DEPLOY / "prometheus" / name).exists() for name in configuration["rule_files"]] == [True]


@pytest.mark.parametrize("alert", ALERTS.values(), ids=ALERTS)
def test_alerts_ask_for_what_is_exported_and_name_labels_that_are_there(alert):
    assert promql.faults(alert["expr"]) == []
    assert set(promql.matched(alert["expr"], "job")) == ({"heed"} if 'job="' in alert["expr"] else set())
    assert alert["labels"]["severity"] in ("warning", "critical")
    selectors = [node for node in promql.nodes(promql.parsed(alert["expr"])) if getattr(node, "name", None)]
    has = set.intersection(*(set(promql.SERIES[one.name]) for one in selectors))
    assert promql.legend_labels(alert["annotations"]["summary"]) <= has


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("heed_requests_queue > 1", "no series heed_requests_queue"),
        ('heed_connections{model="a"} > 1', "heed_connections has no model"),
        ("sum by (stage) (rate(heed_requests_total[1m]))", "heed_requests_total has no stage"),
        ("vector(1)", "no series at all"),
    ],
)
def test_a_wrong_one_is_found(expression, fault):
    assert promql.faults(expression) == [fault]


def test_rejections_are_of_reasons_that_there_are():
    (reasons,) = promql.matched(ALERTS["HeedRejected"]["expr"], "reason")
    assert set(reasons.split("|")) <= set(REASONS)


def test_kubernetes_has_the_same_alerts():
    manifest = yaml.safe_load((DEPLOY / "kubernetes/components/monitoring/rules.yaml").read_text())
    assert manifest["spec"] == RULES
