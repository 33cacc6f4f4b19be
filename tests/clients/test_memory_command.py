"""``heed memory``: what is stored from files is listed, queried by ``heed run``, and deleted."""

import json

import numpy as np

from tests.support.client_calls import SDPA, sdpa


def test_store_list_query_delete(memory_command, attend, tmp_path):
    tensors = sdpa(1, 2)
    for name, array in tensors.items():
        np.save(tmp_path / f"{name}.npy", array)
    key, value, query = (tmp_path / f"{name}.npy" for name in ("key", "value", "query"))
    status, printed, wrong = memory_command("store", "--key", key, "--value", value, "--ttl-seconds", 60)
    assert (status, wrong) == (0, "")
    id = printed.strip()
    assert f"{id} - float32 [1, 2, 7, 8] 616 bytes\n" in memory_command("list")[1]
    _, with_memory, _ = attend(SDPA, "--query", query, "--set", f'memory="{id}"')
    _, expected, _ = attend(SDPA, "--query", query, "--key", key, "--value", value)
    assert json.loads(with_memory) == json.loads(expected)
    assert memory_command("delete", id) == (0, f"deleted {id}\n", "")
    status, printed, wrong = memory_command("list")
    assert (status, id in printed, wrong) == (0, False, "")
    status, _, wrong = memory_command("delete", id)
    assert (status, id in wrong) == (2, True)


def test_what_is_wrong(memory_command, monkeypatch, nobody):
    status, _, wrong = memory_command("store", "--key", "[[1, 2]]")
    assert (status, wrong) == (2, "heed memory: 422 Unprocessable Entity: value: required, and not given\n")
    monkeypatch.setenv("HEED_URL", nobody)
    assert memory_command("list")[0] == 1
