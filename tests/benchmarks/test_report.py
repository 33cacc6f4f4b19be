"""Ratios, gates and the report, from lines as a run records them; and the percentiles of wrk."""

import json

import pytest

from benchmarks.serving import plots, report
from benchmarks.serving.cell import Cell
from benchmarks.serving.gates import gates
from benchmarks.serving.load import percentile_ms, without_correction
from benchmarks.serving.profiling import by_stage, self_times
from benchmarks.serving.results import Results

RUN = "2026-01-02T03:04:05+00:00"


def turns(server, cell, rates, **also):
    return [
        {
            "kind": "turn", "run": RUN, "repeat": i, "server": server, "workload": cell.workload, "format": cell.format,
            "connections": cell.connections, "ids": cell.ids, "rps": rate, "p50_ms": 1.0, "p99_ms": 2.0,
            "requests": 1000, "errors": {}, "server_cpu_s": 1.0, "rss_peak_bytes": 2**20, "other_cores": 0.0, **also,
        }
        for i, rate in enumerate(rates)
    ]  # fmt: skip


W2 = Cell("W2", "json", 8)
NATIVE = Cell("W2", "native", 8)
ROWS = [
    {
        "kind": "run", "run": RUN, "command": "the command", "quiet": 0.2, "machine": {"cpus": 2},
        "versions": {"heed": {"python": "3.11"}},
    },
    *turns("heed", W2, [100, 240, 120, 130, 110]),
    *turns("in-process", W2, [100, 120, 100, 100, 100]),
    *turns("mlserver", W2, [200, 480, 240, 260, 0]),
    *turns("triton-1x1", W2, [50, 60, 60, 50, 70]),
    *turns("triton-2x1", W2, [80] * 5, p99_ms=3.0),
    *turns("heed", Cell("W2", "block-json", 8), [100] * 5),
    *turns("heed", NATIVE, [80] * 4),
    *turns("heed", Cell("W2", "json", 8, "same"), [100]),
    *turns("heed", Cell("W2", "json", 8, "different"), [25]),
    *turns("heed", Cell("W4", "json", 64), [3], requests=100, p50_ms=None, p99_ms=None),
    {
        "kind": "failed", "run": RUN, "repeat": 0, "server": "litserve", "workload": "W2", "format": "json",
        "connections": 8, "ids": "none", "failed": "HTTP 500",
    },
]  # fmt: skip


@pytest.fixture
def results():
    return Results(ROWS)


def test_ratios_are_of_the_same_repeat(results):
    """A repeat without an answer has none; those of few requests are rough."""
    found = results.ratio("heed", W2, "in-process")
    assert (found.median, found.low, found.high, found.count) == (1.2, 1.0, 2.0, 5)
    found = results.ratio("heed", W2, "mlserver")
    assert (found.median, found.count) == (0.5, 4)
    assert results.ratio("heed", W2, "litserve") is None
    assert results.is_rough("heed", Cell("W4", "json", 64))
    assert not results.is_rough("heed", W2)


def test_gates(results):
    found = {(gate.description, str(gate.cell)): gate.verdict for gate in gates(results)}
    assert found == {
        ("against in-process", "W2/json/8"): "met",
        ("native against V2 JSON of the same block", "W2/native/8"): "**not met**, of 4",
        ("p99 / p50", "W2/json/8"): "met",
        ("p99 / p50", "W2/block-json/8"): "met",
        ("p99 / p50", "W2/native/8"): "met, of 4",
    }


def test_the_report_says_it(tmp_path):
    file = tmp_path / "2026-01-02-machine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    written = report.render(file)
    text = written.read_text()
    for line in (
        "| against in-process | W2/json/8 | 1.2 (1 to 2) | ≥ 1.15 | met |",
        "| W2/json/8 | 1.2 (1 to 2) | **0.5 (0.5 to 0.5)** | 1.5 (1.25 to 3) |",  # behind a peer
        "| W2/json/8 | 60 (50 to 70) | **80 (80 to 80)** |",  # Triton's settings
        "| triton | W2/json/8 | 1 | 3 |",
        "| W2/json/8 | 0.25 (0.25 to 0.25) |",  # another id in each request
        "| W4/json/64 | 3 (3 to 3)† |  |  |",
        "- litserve W2/json/8: HTTP 500",
        "- 2026-01-02T03:04:05+00:00: `the command`",
        "0 of 37 turns were disturbed",
    ):
        assert line in text
    first = {plot.name: plot.read_bytes() for plot in tmp_path.glob("*.png")}
    assert set(first) == {"2026-01-02-machine-gates.png", "2026-01-02-machine-throughput.png"}
    assert all(f"({name})" in text for name in first)
    report.render(file)
    assert first == {plot.name: plot.read_bytes() for plot in tmp_path.glob("*.png")}


def test_a_series_is_drawn_against_its_size(tmp_path):
    """Of the smallest, and of connections; a series of two sizes has no curve."""
    file = tmp_path / "2026-01-02-machine.jsonl"
    cells = [Cell(name, "binary", 1) for name in ("n16", "n32", "n64", "batch1", "batch2")]
    cells += [Cell("W1", "binary", connections) for connections in (1, 2, 4, 8)]
    rows = [row for server in ("heed", "triton-2x1") for cell in cells for row in turns(server, cell, [100, 120])]
    assert [(title, [*found]) for title, found in plots.curves(Results(rows)) if found] == [
        ("queries and keys, d 64, binary", [16, 32, 64]),
        ("rows of 128 queries and keys, d 64, binary", [1, 2]),
        ("W1, binary: connections", [1, 2, 4, 8]),
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in [ROWS[0], *rows]))
    report.render(file)
    assert (tmp_path / "2026-01-02-machine-growth.png").exists()


def test_self_times_leave_out_who_waits():
    frames = [{"name": "main", "file": "/a/main.py"}, {"name": "0x7f (libc.so.6)"}, {"name": "epoll_wait"}]
    document = {"shared": {"frames": frames}, "profiles": [{"samples": [[0], [0, 1], [0, 2]]}]}
    assert self_times(document) == {"main (main.py)": 2, None: 1}


def corrected(counts: dict[int, int], interval: int) -> dict[int, int]:
    """As wrk 4 corrects for coordinated omission (stats.c, stats_correct)."""
    data = dict(counts)
    for n in range(2 * interval, max(counts) + 1):
        if count := data.get(n):
            m = n - interval
            while m > interval:
                data[m] = data.get(m, 0) + count
                m -= interval
    return data


def test_the_correction_is_undone():
    real = {3: 5, 10: 100, 11: 7, 35: 4, 36: 1, 90: 2, 200: 1}
    added = corrected(real, 10)
    assert sum(added.values()) > sum(real.values())
    assert without_correction(added, 10) == real


def test_percentiles():
    times = {1000: 98, 2000: 1, 9000: 1}
    assert [percentile_ms(times, share) for share in (0.5, 0.99, 1.0)] == [1.0, 2.0, 9.0]
    assert percentile_ms({}, 0.5) is None


def test_a_sample_is_of_the_stage_of_its_innermost_known_frame():
    names = [("main", "main.py"), ("_exact", "json_writer.py"), ("0x7f", "libm"), ("Session.run", "session.py")]
    names += [("write", "libc.so.6"), ("epoll_wait", "libc.so.6")]
    frames = [{"name": name, "file": f"/usr/lib/{file}"} for name, file in names]
    samples = [[0], [0, 1], [0, 1, 2], [0, 3], [0, 1, 4], [0, 5]]
    document = {"shared": {"frames": frames}, "profiles": [{"samples": samples}]}
    assert by_stage(document) == {
        "ONNX Runtime": 1, "numbers to text": 2, "text to numbers": 0, "sockets": 1, "the rest": 1,
    }  # fmt: skip
