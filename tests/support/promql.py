"""Expressions of PromQL, and what is wrong with them."""

import re
from collections.abc import Mapping, Set

import promql_parser as promql

from service.telemetry.families import FAMILIES

SCRAPER = {"job", "instance"}  # labels that Prometheus adds
SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}
# Every series that the service can export, and its labels; and the one that Prometheus adds for each target.
SERIES: Mapping[str, Set[str]] = {"up": SCRAPER} | {
    name + suffix: {*family.labels, *(["le"] if suffix == "_bucket" else []), *SCRAPER}
    for name, family in FAMILIES.items()
    for suffix in SUFFIXES[family.kind]
}


def parsed(expression: str) -> promql.Expr:
    return promql.parse(expression.replace("$__rate_interval", "1m"))


def nodes(expression: promql.Expr) -> list[promql.Expr]:
    """The expression and all it is made of."""
    found: list[promql.Expr] = []
    promql.walk(expression, lambda node: found.append(node) or True)
    return found


def faults(expression: str, series: Mapping[str, Set[str]] = SERIES) -> list[str]:
    """Names and labels in the expression that are not among ``series``; a syntax error raises ValueError."""
    found = []
    every = nodes(parsed(expression))
    selectors = [node for node in every if isinstance(node, promql.VectorSelector)]
    for selector in selectors:
        labels = {matcher.name for matcher in selector.matchers.matchers}
        if selector.name not in series:
            found.append(f"no series {selector.name}")
        elif unknown := labels - series[selector.name]:
            found.append(f"{selector.name} has no {', '.join(sorted(unknown))}")
    for node in every:
        if isinstance(node, promql.AggregateExpr) and node.modifier:
            for within in nodes(node):
                if isinstance(within, promql.VectorSelector):
                    unknown = set(node.modifier.labels) - series.get(within.name, set(node.modifier.labels))
                    found += [f"{within.name} has no {label}" for label in sorted(unknown)]
    return found if selectors else ["no series at all"]


def matched(expression: str, label: str) -> list[str]:
    """The patterns and texts that the expression compares ``label`` with."""
    selectors = [node for node in nodes(parsed(expression)) if isinstance(node, promql.VectorSelector)]
    return [matcher.value for one in selectors for matcher in one.matchers.matchers if matcher.name == label]


def legend_labels(legend: str) -> set[str]:
    """The labels that a legend or a text of an alert names."""
    return set(re.findall(r"{{(\w+)}}", legend)) | set(re.findall(r"\$labels\.(\w+)", legend))
