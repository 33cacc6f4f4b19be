"""What the metrics say of a saturated server is what its clients see, and health is answered meanwhile."""

import pytest

from benchmarks import saturation

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
        assert level.health < max(0.5, level.client[0] if level.connections else 0)
