"""What the metrics say of a saturated server is what its clients see, and health is answered meanwhile."""

import os
from math import ceil
from pathlib import Path
from statistics import median

import pytest
import yaml

from benchmarks import saturation

pytestmark = pytest.mark.skipif(
    "HEED_TEST_BENCHMARKS" not in os.environ, reason="make test-benchmarks: other tests take the CPUs that it measures"
)
AUTOSCALER = Path(__file__).parents[2] / "deploy/kubernetes/base/autoscaler.yaml"

IDLE, BUSY, FULL = 0, 64, 512


@pytest.fixture(scope="module")
def levels(two_blocks):
    """An idle server, one that 64 connections saturate, and one that 512 do."""
    return {level.connections: level for level in saturation.run(two_blocks, {IDLE: 1, BUSY: 14, FULL: 4})}


def test_lag_and_busy_share_rise_with_saturation(levels):
    busy, lag = (
        [levels[number].gauges[name] for number in (IDLE, BUSY)]
        for name in ("event_loop_busy_ratio", "event_loop_lag_max_seconds")
    )
    assert busy[0] < 0.6 * busy[1]
    assert busy[1] > 0.5
    assert lag[0] < lag[1]
    assert levels[FULL].gauges["event_loop_lag_max_seconds"] > 0.05


@pytest.mark.parametrize("connections", [BUSY, FULL])
def test_latency_is_what_clients_see(levels, connections):
    """Closely on a machine with nothing else to do; benchmarks/saturation.md has such figures."""
    level = levels[connections]
    for own, theirs in zip(level.server, level.client, strict=True):
        assert 0.5 * theirs < own < 1.5 * theirs


def test_health_is_answered_at_any_load(levels):
    for level in levels.values():
        assert level.unhealthy == 0
        assert max(level.health) < 0.1
    assert median(levels[FULL].health) < 0.5 * levels[FULL].client[0]


def test_the_autoscaler_follows_the_load(levels):
    """As Kubernetes computes it, from the metric and target of its manifest: two pods become more, or one is enough."""
    metrics = yaml.safe_load(AUTOSCALER.read_text())["spec"]["metrics"]
    (metric,) = (metric["pods"] for metric in metrics if "pods" in metric)
    name, target = metric["metric"]["name"].removeprefix("heed_"), metric["target"]["averageValue"]
    assert target.endswith("m")
    ratios = {number: level.gauges[name] / (int(target[:-1]) / 1000) for number, level in levels.items()}
    wanted = {number: 2 if abs(ratio - 1) < 0.1 else ceil(2 * ratio) for number, ratio in ratios.items()}
    assert wanted[IDLE] < 2 < wanted[BUSY]
