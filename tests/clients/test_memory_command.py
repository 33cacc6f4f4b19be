"""``heed memory``: what is stored from files is listed, queried by ``heed run``, and deleted."""

import json

import numpy as np
import pytest

from heed_client.memories.command import main
from tests.support.client_calls import SDPA, sdpa


@pytest.fixture
def memory(client, capsys, monkeypatch):
    """Runs the command; answers its status, and what it wrote to both streams."""
    monkeypatch.setenv("HEED_URL", str(client.base_url).rstrip("/"))

    def run(*arguments):
        return main(list(map(str, arguments))), *capsys.readouterr()

    return run


def test_store_list_query_delete(memory, attend, tmp_path):
    tensors = sdpa(1, 2)
    for name, array in tensors.items():
        np.save(tmp_path / f"{name}.npy", array)
    key, value, query = (tmp_path / f"{name}.npy" for name in ("key", "value", "query"))
    status, printed, wrong = memory("store", "--key", key, "--value", value, "--ttl-seconds", 60)
    assert (status, wrong) == (0, "")
    id = printed.strip()
    assert f"{id} - float32 [1, 2, 7, 8] 616 bytes\n" in memory("list")[1]
    _, found, _ = attend(SDPA, "--query", query, "--set", f'memory="{id}"')
    _, expected, _ = attend(SDPA, "--query", query, "--key", key, "--value", value)
    assert json.loads(found) == json.loads(expected)
    assert memory("delete", id) == (0, f"deleted {id}\n", "")
    status, printed, wrong = memory("list")
    assert (status, id in printed, wrong) == (0, False, "")
    status, _, wrong = memory("delete", id)
    assert (status, id in wrong) == (2, True)


def test_what_is_wrong(memory, tmp_path, monkeypatch):
    assert memory("store", "--key", tmp_path / "none.npy")[0] == 2
    status, _, wrong = memory("store", "--key", "[[1, 2]]")
    assert (status, wrong) == (2, "heed memory: 422 Unprocessable Entity: value: required, and not given\n")
    monkeypatch.setenv("HEED_URL", "http://127.0.0.1:9")
    assert memory("list")[0] == 1
