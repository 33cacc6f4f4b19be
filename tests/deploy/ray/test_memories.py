"""Memories that are split over the nodes of a real Ray cluster, with copies and without."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from tests.deploy.ray.nodes import Load, Nodes, running
from tests.support.attending import attend, coded
from tests.support.documents import ROOT
from tests.support.memories import append, lengths, normal, send, store
from tests.support.waiting import until

pytestmark = [pytest.mark.extended, pytest.mark.filterwarnings("ignore")]  # the warnings are Ray's own

SDPA = "scaled_dot_product"
NODES = 3
PART_BYTES = 4096
EVERY = ("output", "weights", "scores", "lse")
D_K, D_V = 8, 5
KEY_BYTES = 4 * (D_K + D_V)


@pytest.fixture(scope="module")
def nodes(repository) -> Iterator[Nodes]:
    with running(NODES) as nodes:
        serve(nodes, repository, copies=2)
        yield nodes


@pytest.fixture
def client(nodes) -> Iterator[httpx.Client]:
    """A client, once the catalogue has the status of every node. There are as many as at the start."""
    import ray

    replace_lost(nodes)

    def are_known() -> bool:
        try:
            limits = [ray.get(actor(f"memories-{node.node_id}").status.remote()).limit for node in nodes.nodes]
        except ValueError:  # a new node has no actor yet
            return False
        return len(limits) == NODES and ray.get(actor("memories").totals.remote()).limit == sum(limits)

    until(are_known)
    with nodes.client() as client:
        yield client


def replace_lost(nodes: Nodes) -> None:
    while len(nodes.nodes) < NODES:
        nodes.add()


def serve(nodes: Nodes, models: Path, copies: int, replicas: int = 2) -> None:
    replace_lost(nodes)
    nodes.serve_running(models, replicas, memory_part_bytes=PART_BYTES, memory_copies=copies)


def rows(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((count, d), "f4") for name, d in (("key", D_K), ("value", D_V))}


def joined(*parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in ("key", "value")}


def actor(name: str) -> Any:
    import ray

    return ray.get_actor(name, namespace="heed")


def snapshot(memory: str) -> Any:
    import ray

    return ray.get(actor("memories").get.remote(memory, None))


def stores(memory: str) -> list[set[str]]:
    """Those with each part of it."""
    return [{holder.store for holder in part.holders} for part in snapshot(memory).layout.parts]


def store_of(node: Any) -> str:
    import ray

    return ray.get(actor(f"memories-{node.node_id}").status.remote()).store


def is_copied(memory: str) -> bool:
    """Whether there are two copies of each part, on nodes that are there."""
    now = snapshot(memory)
    return all(len(of_part & now.nodes.keys()) == 2 for of_part in stores(memory))


def values(memory: str) -> np.ndarray:
    """The values of a memory without an axis of heads, read from its files."""
    import ray

    now, pieces = snapshot(memory), []
    for place, part in enumerate(now.layout.parts):
        holder = next(holder for holder in part.holders if holder.store in now.nodes)
        work = [(holder.id, now.layout.part(place, now.lengths).lengths)]
        ((_, value),) = ray.get(now.nodes[holder.store].rows.remote(work))
        pieces.append(value[0, 0])
    return np.concatenate(pieces)


def assert_equal_to_one_piece(client: httpx.Client, memory: str, whole: dict[str, np.ndarray], **options) -> None:
    query = normal(3, D_K)
    split = attend(client, SDPA, query=query, memory=memory, outputs=[*EVERY], **options)
    at_once = attend(client, SDPA, query=query, **whole, outputs=[*EVERY], **options)
    for name in EVERY:
        np.testing.assert_allclose(split[name], at_once[name], rtol=2e-6, atol=2e-6)


def test_the_api_is_that_of_one_machine(nodes):
    """All tests of queries, whose memories here have many parts."""
    environment = {**os.environ, "HEED_TEST_SERVER": nodes.address}
    command = [sys.executable, "-m", "pytest", "-q", "tests/service/memories/test_queries.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]


def test_a_memory_is_split_over_all_nodes(nodes, client):
    whole = rows(PART_BYTES // KEY_BYTES * 7)
    memory = store(client, **whole)["id"]
    assert len(stores(memory)) >= 7
    assert len(set.union(*stores(memory))) == NODES
    assert all(len(of_part) == 2 for of_part in stores(memory))
    for options in ({}, {"is_causal": True}, {"left_window_size": 90, "right_window_size": 3}, {"softcap": 0.5}):
        assert_equal_to_one_piece(client, memory, whole, **options)
    assert_equal_to_one_piece(client, memory, whole, attn_mask=coded(np.arange(len(whole["key"])) % 3 > 0))


def test_appends_fill_the_last_part_and_then_make_another(client):
    whole = rows(10)
    memory = store(client, **whole)["id"]
    for turn in range(12):
        new = rows(17, seed=turn + 1)
        assert append(client, memory, **new).status_code == 200
        whole = joined(whole, new)
    assert 2 < len(stores(memory)) < 12
    assert_equal_to_one_piece(client, memory, whole)


def test_many_clients_append_at_the_same_time(nodes, client):
    """All their rows are there once, in some order, whatever replica took them."""
    memory = store(client, **rows(1))["id"]

    def append_ten(seed: int) -> None:
        with nodes.client() as own:
            for turn in range(10):
                value = np.full((1, D_V), 100 * seed + turn, "f4")
                assert append(own, memory, key=np.zeros((1, D_K), "f4"), value=value).status_code == 200

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(append_ten, range(1, 7)))
    assert lengths(client, memory) == [61]
    answer = attend(client, SDPA, query=np.zeros((1, D_K), "f4"), memory=memory)
    expected = (rows(1)["value"][0] + sum(100 * seed + turn for seed in range(1, 7) for turn in range(10))) / 61
    np.testing.assert_allclose(answer["output"][0], expected, rtol=1e-5)


def queries(nodes: Nodes, memory: str) -> Load:
    body = orjson.dumps({"query": coded(normal(1, D_K)), "memory": memory}, option=orjson.OPT_SERIALIZE_NUMPY)
    return Load(nodes, 3, f"/v1/attention/{SDPA}", body)


def test_a_lost_node_costs_no_memory_that_has_copies(nodes, client, repository):
    """Answers are right or, from the replica on the lost node, an error; appends too. New copies are made."""
    whole = rows(PART_BYTES // KEY_BYTES * 6)
    memory = store(client, **whole)["id"]
    right = attend(client, SDPA, query=normal(1, D_K), memory=memory)["output"]
    with queries(nodes, memory) as clients:
        nodes.lose(nodes.nodes[0])
        until(lambda: is_copied(memory), 60)
        nodes.until_running(2)
        later = clients.more(20)
    assert {answer.status for answer in later} == {200}
    assert {answer.status for answer in clients.answers} <= {200, 500, 503}  # 500 is Ray's, of a replica that is lost
    outputs = [json.loads(answer.content)["output"] for answer in clients.answers if answer.status == 200]
    np.testing.assert_allclose(outputs, np.broadcast_to(right, np.shape(outputs)), rtol=1e-5)
    new = rows(100, seed=9)
    assert append(client, memory, **new).status_code == 200
    assert_equal_to_one_piece(client, memory, joined(whole, new))


def test_no_append_is_lost_with_a_node(nodes, client):
    """Of those that were confirmed; one that was not is there once or not at all."""
    memory = store(client, **rows(1))["id"]
    confirmed, stop = [], threading.Event()

    def append_all() -> None:
        with nodes.client() as own:
            for number in range(10_000):
                if stop.is_set():
                    return
                value = np.full((1, D_V), number, "f4")
                if append(own, memory, key=np.zeros((1, D_K), "f4"), value=value).status_code == 200:
                    confirmed.append(number)

    thread = threading.Thread(target=append_all)
    thread.start()
    until(lambda: len(confirmed) > 20)
    nodes.lose(nodes.nodes[0])
    count = len(confirmed)
    until(lambda: len(confirmed) > count + 20, 90)
    stop.set()
    thread.join()
    stored = values(memory)[1:, 0].tolist()
    assert lengths(client, memory) == [1 + len(stored)]
    assert len({*stored}) == len(stored)
    assert {*confirmed} <= {*stored}


def test_a_catalogue_that_is_killed_finds_all_memories_again(nodes, client):
    import ray

    whole = rows(PART_BYTES // KEY_BYTES * 3)
    memory = store(client, **whole)["id"]
    new = rows(3, seed=4)
    assert append(client, memory, **new).status_code == 200
    with queries(nodes, memory) as clients:
        ray.kill(actor("memories"), no_restart=False)
        clients.more(20)
    assert {answer.status for answer in clients.answers} <= {200, 503}
    assert lengths(client, memory) == [len(whole["key"]) + 3]
    assert_equal_to_one_piece(client, memory, joined(whole, new))
    assert append(client, memory, **new, at=len(whole["key"]) + 3).status_code == 200


def test_what_is_on_a_lost_node_alone_is_named(nodes, client, repository, request):
    """Without copies; other memories go on."""
    serve(nodes, repository, copies=1)
    request.addfinalizer(partial(serve, nodes, repository, copies=2))
    split = store(client, **rows(PART_BYTES // KEY_BYTES * 9))["id"]
    layout = snapshot(split).layout
    last = layout.parts[-1].holders[0].store  # without it the number of keys is not known
    lost, name = next((node, store_of(node)) for node in nodes.nodes if store_of(node) != last)
    seed, spared = next(
        (seed, memory)
        for seed in range(30)
        if name not in set.union(*stores(memory := store(client, **rows(5, seed))["id"]))
    )
    nodes.lose(lost)
    nodes.until_running(2)
    ask = partial(send, client, f"/v1/attention/{SDPA}", query=normal(1, D_K), memory=split)
    until(lambda: "catalogue" not in ask().text, 60)  # it may have been on that node, and starts on another
    response = ask()
    first = next(place for place, part in enumerate(layout.parts) if part.holders[0].store == name)
    start, end = layout.parts[first].starts[0], layout.parts[first + 1].starts[0] - 1
    assert response.status_code == 503
    assert f"keys {start} to {end} of the memory are on lost nodes" in response.json()["detail"]
    assert_equal_to_one_piece(client, spared, rows(5, seed))
    assert client.delete(f"/v1/memories/{split}").status_code == 204
