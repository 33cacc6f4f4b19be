"""Counters: both faces count, threads lose nothing, and clients cannot make them grow without end."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from service.statistics import MOST_BATCH_SIZES, STAGES, Statistics
from tests.attending import post
from tests.service.v2.calls import infer


def count(server, model):
    return server.get(f"/v2/models/{model}/stats").json()["model_stats"][0]


def test_the_native_face_counts_too(server):
    before = count(server, "dot_product")
    x = np.ones((3, 1, 2, 2), np.float32)
    assert post(server, "dot_product", {"query": x, "key": x, "value": x}).status_code == 200
    assert post(server, "dot_product", {"query": x}).status_code == 422
    after = count(server, "dot_product")
    assert after["inference_count"] - before["inference_count"] == 3
    assert after["execution_count"] - before["execution_count"] == 1
    assert after["inference_stats"]["fail"]["count"] - before["inference_stats"]["fail"]["count"] == 1


def test_a_model_that_is_loaded_anew_begins_anew(server):
    infer(server, "identity_INT16", {})
    assert count(server, "identity_INT16")["inference_stats"]["fail"]["count"] > 0
    assert server.post("/v2/repository/models/identity_INT16/load").status_code == 200
    assert count(server, "identity_INT16")["inference_stats"]["fail"]["count"] == 0


def test_threads_lose_nothing():
    statistics = Statistics()
    with ThreadPoolExecutor(8) as pool:
        for i in range(4000):
            pool.submit(statistics.succeeded, i % 5, i % 5, 10, dict.fromkeys(STAGES, 2))
            pool.submit(statistics.failed, 3)
    now = statistics.snapshot()
    assert (now.executions, now.success.count, now.success.ns) == (4000, 4000, 40000)
    assert (now.fail.count, now.fail.ns) == (4000, 12000)
    assert now.inferences == 8000
    assert {rows: of["compute"].count for rows, of in now.batches.items()} == dict.fromkeys(range(5), 800)


def test_batch_sizes_are_bounded():
    statistics = Statistics()
    for rows in range(2 * MOST_BATCH_SIZES):
        statistics.succeeded(rows, rows, 1, dict.fromkeys(STAGES, 1))
    assert len(statistics.snapshot().batches) == MOST_BATCH_SIZES
    assert statistics.snapshot().executions == 2 * MOST_BATCH_SIZES
