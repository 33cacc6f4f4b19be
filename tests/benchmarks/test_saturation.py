"""What the metrics say of a saturated server is what its clients see, and health is answered meanwhile."""

import os
from collections import defaultdict
from itertools import chain
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

IDLE, ONE, BUSY, FULL = 0, 1, 64, 512


@pytest.fixture(scope="module")
def levels(two_blocks):
    """An idle server, one with a single client, one that 64 connections saturate, and one that 512 do."""
    seconds = [(IDLE, 1), *5 * [(ONE, 3)], (BUSY, 14), *3 * [(FULL, 5)]]
    levels = defaultdict(list)
    for level in saturation.run(two_blocks, seconds):
        levels[level.connections].append(level)
    return levels


def test_lag_and_busy_share_rise_with_saturation(levels):
    busy, lag = (
        [levels[number][0].gauges[name] for number in (IDLE, BUSY)]
        for name in ("event_loop_busy_ratio", "event_loop_lag_max_seconds")
    )
    assert busy[0] < 0.6 * busy[1]
    assert busy[1] > 0.5
    assert lag[0] < lag[1]
    assert levels[FULL][0].gauges["event_loop_lag_max_seconds"] > 0.05


@pytest.mark.parametrize("connections", [ONE, BUSY, FULL])
def test_latency_is_what_clients_see(levels, connections):
    for share in (0, 1):  # p50 and p99
        assert 0.8 < median(level.server[share] / level.client[share] for level in levels[connections]) < 1.2


def test_health_is_answered_at_any_load(levels):
    for level in chain(*levels.values()):
        assert level.unhealthy == 0
        assert max(level.health) < 0.1
    for level in levels[FULL]:
        assert median(level.health) < 0.5 * level.client[0]


def test_the_autoscaler_follows_the_load(levels):
    """As Kubernetes computes it, from the metric and target of its manifest: two pods become more, or one is enough."""
    metrics = yaml.safe_load(AUTOSCALER.read_text())["spec"]["metrics"]
    (metric,) = (metric["pods"] for metric in metrics if "pods" in metric)
    name, target = metric["metric"]["name"].removeprefix("heed_"), metric["target"]["averageValue"]
    assert target.endswith("m")
    ratios = {number: level.gauges[name] / (int(target[:-1]) / 1000) for number, (level, *_) in levels.items()}
    wanted = {number: 2 if abs(ratio - 1) < 0.1 else ceil(2 * ratio) for number, ratio in ratios.items()}
    assert wanted[IDLE] < 2 < wanted[BUSY]
