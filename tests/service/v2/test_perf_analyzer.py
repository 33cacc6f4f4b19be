"""NVIDIA's perf_analyzer, unmodified, with its server-side breakdown; ``make test-perf-analyzer`` fetches it and sets
``PERF_ANALYZER``, without which this module is not collected."""

import os
import re
import subprocess

import pytest

pytestmark = pytest.mark.extended
PERF_ANALYZER = os.environ["PERF_ANALYZER"]
SHAPES = ["--shape", "query:2,4,8", "--shape", "key:2,5,8", "--shape", "value:2,5,8"]
JSON = ["--input-tensor-format", "json", "--output-tensor-format", "json"]
ZERO = ["--input-data", "zero"]  # its random bits overflow float32, which JSON cannot say
CALLS = {
    "a foreign model": ["-m", "adder"],
    "in batches, in JSON": ["-m", "adder", "-b", "4", *JSON],
    "four types, in binary": ["-m", "mixed", "--shape", "count:4,2", "--shape", "wide:4,2"],
    "a block": ["-m", "scaled_dot_product", *SHAPES],
    "a block, in batches, in JSON": ["-m", "dot_product", "-b", "3", *SHAPES, *JSON, *ZERO],
    "a version": ["-m", "adder", "-x", "1", "--concurrency-range", "4"],
}


@pytest.mark.parametrize("flags", CALLS.values(), ids=CALLS)
def test_it_measures(address, flags):
    command = [PERF_ANALYZER, "-u", address, "-i", "http", "--request-count", "100", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Request count: \d\d", done.stdout), done.stdout
    server = re.search(r"Avg request latency: (\d+) usec \((.*)\)", done.stdout)
    assert server, done.stdout
    for stage in ("overhead", "queue", "compute input", "compute infer", "compute output"):
        assert f"{stage} " in server[2]
