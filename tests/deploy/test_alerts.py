"""The alerts ask for series that exist, and Prometheus and Kubernetes have the same ones."""

import pytest
import yaml

from service.engine.counters import REASONS
from tests.support import promql
from tests.support.kubernetes import FOLDER

RULES = yaml.safe_load((FOLDER.parent / "prometheus/rules.yml").read_text())
(GROUP,) = RULES["groups"]
ALERTS = {rule["alert"]: rule for rule in GROUP["rules"]}


@pytest.mark.parametrize("alert", ALERTS.values(), ids=ALERTS)
def test_expressions_ask_for_what_is_exported(alert):
    assert promql.faults(alert["expr"]) == []
    assert set(promql.matched(alert["expr"], "job")) == ({"heed"} if 'job="' in alert["expr"] else set())
    assert alert["labels"]["severity"] in ("warning", "critical")


@pytest.mark.parametrize("alert", ALERTS.values(), ids=ALERTS)
def test_texts_name_labels_that_are_there(alert):
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


def test_kubernetes_has_the_same():
    manifest = yaml.safe_load((FOLDER / "components/monitoring/rules.yaml").read_text())
    assert manifest["spec"] == RULES
