"""The store: who sees what, how long it lives, what is evicted, and what happens to files that others touched."""

import hashlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import numpy as np
import orjson
import pytest

from service.inference import endpoint as inference
from service.memories.memory import MAX_ROWS
from service.memories.store import ID, OVERHEAD_BYTES, new_id
from tests.support.application import running
from tests.support.attending import attend, post
from tests.support.memories import append, normal, send, store
from tests.support.server import command, serving

MIB = 1 << 20
KEY = normal(1, 1, 1024, 64)  # 256 KiB
QUERY = normal(1, 1, 1, 64)


def status_of(client, memory):
    return client.get(f"/v1/memories/{memory}").status_code


@pytest.fixture
def small(two_blocks, tmp_path):
    """An application with room for four memories of half a MiB."""
    with running(two_blocks, memories=tmp_path / "memories", memories_bytes=2 * MIB + 4 * OVERHEAD_BYTES) as client:
        yield client


def test_what_is_told_of_a_memory(client):
    key, value = normal(2, 3, 5, 4), normal(2, 3, 5, 6)
    told = store(client, key=key, value=value, dtype="float16", ttl_seconds=60)
    assert (told["key_shape"], told["value_shape"], told["lengths"]) == ([2, 3, 5, 4], [2, 3, 5, 6], [5, 5])
    assert (told["dtype"], told["block"], told["bytes"]) == ("float16", None, 2 * 2 * 3 * 5 * 10)
    created, expires = (datetime.fromisoformat(told[name]) for name in ("created", "expires"))
    assert (expires - created).total_seconds() == 60
    assert client.get(f"/v1/memories/{told['id']}").json() == told
    assert told in client.get("/v1/memories").json()["memories"]
    assert client.delete(f"/v1/memories/{told['id']}").status_code == 204
    assert status_of(client, told["id"]) == 404
    assert client.delete(f"/v1/memories/{told['id']}").status_code == 404


def test_every_notation_is_the_same(client):
    key, value = normal(2, 7, 3), normal(2, 7, 5)
    numbers = {"key": key.tobytes(), "value": value.tobytes()}
    tensors = {
        name: {"shape": array.shape, "dtype": "float32", "binary_data_size": array.nbytes}
        for name, array in (("key", key), ("value", value))
    }

    def send_binary(head, attached):
        content = orjson.dumps(head)
        headers = {"Inference-Header-Content-Length": str(len(content)), "Content-Type": "application/octet-stream"}
        return client.post("/v1/memories", content=content + attached, headers=headers)

    plain, both = store(client, key=key, value=value), numbers["key"] + numbers["value"]
    for same in (
        send(client, "/v1/memories", key=key.tolist(), value=value.tolist()),
        send_binary(tensors, both),
        send_binary(dict(reversed(tensors.items())), numbers["value"] + numbers["key"]),
    ):
        assert (same.status_code, same.json()["content"]) == (201, plain["content"]), same.text
    for change, attached, status, said in (
        ({"type": "float32"}, both, 400, "unknown field"),
        ({"shape": [-2, 7, -3]}, both, 422, "key: "),
        ({}, numbers["key"], 400, ""),
        ({}, both + b"more", 400, ""),
    ):
        refused = send_binary({**tensors, "key": tensors["key"] | change}, attached)
        assert (refused.status_code, said in refused.json()["detail"]) == (status, True), refused.text


def test_the_rows_of_a_memory_are_limited_in_every_notation(client):
    memory, rows = store(client, key=[[1]], value=[[1]])["id"], normal(MAX_ROWS + 1, 1, 1, 1)
    shape = {"shape": rows.shape, "binary_data_size": rows.nbytes}
    head = orjson.dumps({"key": shape, "value": shape})
    binary = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    for path in ("/v1/memories", f"/v1/memories/{memory}/append"):
        for refused in (
            send(client, path, key=rows, value=rows),
            send(client, path, key=rows.tolist(), value=rows.tolist()),
            client.post(path, content=head + 2 * rows.tobytes(), headers=binary),
        ):
            told = refused.json()
            assert (refused.status_code, told["field"]) == (422, "key"), refused.text
            assert f"expected at most {MAX_ROWS} rows, got {MAX_ROWS + 1}" in told["detail"]
    states = normal(MAX_ROWS + 1, 1, 24)
    refused = send(client, "/v1/memories", block="cross_attention", memory=states)
    assert (refused.status_code, refused.json()["field"]) == (422, "memory"), refused.text
    most = store(client, key=rows[1:], value=rows[1:])
    assert most["lengths"] == [1] * MAX_ROWS
    assert append(client, most["id"], key=rows[1:], value=rows[1:]).status_code == 200


def test_the_list_is_part_of_the_memory_budget(two_blocks, monkeypatch):
    with running(two_blocks) as client:
        store(client, key=KEY, value=KEY)
        budget, held = client.app.budget, []
        respond = inference.respond

        async def responding(send, pieces, fields):
            held.append(budget.used)
            await respond(send, pieces, fields)

        monkeypatch.setattr(inference, "respond", responding)
        listed = client.get("/v1/memories")
        assert (held, budget.used, len(listed.json()["memories"])) == ([len(listed.content)], 0, 1)
        monkeypatch.setattr(budget, "limit", len(listed.content) - 1)
        assert client.get("/v1/memories").status_code == 413
        assert budget.used == 0


def test_content_that_is_stored_is_found_by_its_hash(client):
    key = normal(1, 1, 9, 4, seed=9)
    head = orjson.dumps([None, "float32", key.shape, key.shape, [9]], option=orjson.OPT_APPEND_NEWLINE)
    content = hashlib.sha256(head + key.tobytes() + key.tobytes()).hexdigest()
    first = store(client, key=key, value=key)
    assert first["content"] == content
    match = {"If-None-Match": f'"{content}"'}
    again = send(client, "/v1/memories", key=key, value=key, headers=match)
    assert (again.status_code, again.json()["id"]) == (200, first["id"])
    append(client, first["id"], key=key, value=key)  # now it has another content
    other = send(client, "/v1/memories", key=key, value=key, headers=match)
    assert (other.status_code, other.json()["id"] == first["id"]) == (201, False)


def test_the_least_recently_used_is_evicted(small, tmp_path):
    first, second, *others = (store(small, key=KEY, value=KEY)["id"] for _ in range(4))
    for age, memory in enumerate((*others, second, first)):
        os.utime(tmp_path / "memories" / memory / "memory.json", times=(0, 1000 - age))
    attend(small, query=QUERY, memory=first)
    assert "\nheed_memories_evicted_total 0.0\n" in small.get("/metrics").text
    last = store(small, key=KEY, value=KEY)["id"]
    assert [status_of(small, memory) for memory in (first, second, *others, last)] == [200, 404, 200, 200, 200]
    assert "\nheed_memories_evicted_total 1.0\n" in small.get("/metrics").text


def test_eviction_under_load_gives_right_answers_or_404(small):
    """Each memory has one number as its values, so that an answer tells whose it is."""

    def query_memories(place):
        statuses = []
        for number in range(100 * place, 100 * place + 10):
            memory = store(small, key=KEY, value=np.full_like(KEY, number))["id"]
            for _ in range(4):
                response = post(small, "scaled_dot_product", {"query": QUERY, "memory": memory, "outputs": ["output"]})
                statuses.append(response.status_code)
                if response.status_code == 200:
                    np.testing.assert_allclose(response.json()["output"], np.full((1, 1, 1, 64), number), rtol=1e-6)
        return statuses

    with ThreadPoolExecutor(4) as threads:
        statuses = {status for of_one in threads.map(query_memories, range(4)) for status in of_one}
    assert statuses in ({200}, {200, 404})


@pytest.fixture
def keyed(two_blocks, tmp_path):
    (tmp_path / "keys").write_text("ours\ntheirs\n")
    (tmp_path / "admin").write_text("chief\n")
    files = {"api_keys_file": tmp_path / "keys", "admin_keys_file": tmp_path / "admin"}
    with running(two_blocks, **files) as client:
        yield client


def test_a_key_sees_its_own(keyed):
    ours, theirs, chief = ({"X-API-Key": key} for key in ("ours", "theirs", "chief"))
    assert send(keyed, "/v1/memories", key=KEY, value=KEY).status_code == 401
    memory = send(keyed, "/v1/memories", key=KEY, value=KEY, headers=ours).json()
    path, query = f"/v1/memories/{memory['id']}", {"query": QUERY, "memory": memory["id"]}
    for headers, status in ((ours, 200), (chief, 200), (theirs, 404)):
        assert keyed.get(path, headers=headers).status_code == status
        assert post(keyed, "scaled_dot_product", query, **headers).status_code == status
        assert (memory in keyed.get("/v1/memories", headers=headers).json()["memories"]) == (status == 200)
    row = KEY[:, :, :1]
    assert send(keyed, f"{path}/append", key=row, value=row, headers=theirs).status_code == 404
    assert keyed.delete(path, headers=theirs).status_code == 404
    match = {"If-None-Match": f'"{memory["content"]}"'}
    other = send(keyed, "/v1/memories", key=KEY, value=KEY, headers=theirs | match)
    assert (other.status_code, other.json()["id"] == memory["id"]) == (201, False)
    assert keyed.delete(path, headers=chief).status_code == 204


def test_a_damaged_memory_is_gone_and_the_others_live(two_blocks, tmp_path):
    """An administrator sees it in the list."""
    (tmp_path / "admin").write_text("chief\n")
    settings = {"memories": tmp_path / "memories", "admin_keys_file": tmp_path / "admin"}
    with running(two_blocks, **settings) as client:
        whole, broken = (store(client, key=KEY, value=KEY)["id"] for _ in range(2))
        expected = attend(client, query=QUERY, memory=whole)
    (tmp_path / "memories" / broken / "memory.json").write_text("{")
    with running(two_blocks, **settings) as client:
        response = post(client, "scaled_dot_product", {"query": QUERY, "memory": broken})
        assert (response.status_code, response.json()["title"]) == (410, "Gone"), response.text
        np.testing.assert_array_equal(attend(client, query=QUERY, memory=whole)["output"], expected["output"])
        for headers, damaged in (({}, []), ({"X-API-Key": "chief"}, [broken])):
            listed = client.get("/v1/memories", headers=headers).json()
            assert [memory["id"] for memory in listed["memories"]] == [whole]
            assert [memory["id"] for memory in listed["damaged"]] == damaged
        assert client.delete(f"/v1/memories/{broken}").status_code == 204
        assert status_of(client, broken) == 404


@pytest.mark.extended
def test_a_second_server_of_a_folder_ends_with_its_reason(two_blocks, tmp_path):
    folder = tmp_path / "memories"
    with serving(two_blocks, "--memories", str(folder)):
        second = subprocess.run(command(two_blocks, "--memories", str(folder)), capture_output=True, text=True)
        assert (second.returncode, "another server uses this folder" in second.stderr) == (2, True)


def test_no_id_looks_like_an_option():
    ids = [new_id() for _ in range(2000)]  # a 64th of random ones would begin with a hyphen
    assert len(set(ids)) == 2000
    assert all(ID.fullmatch(id) and "-" not in id for id in ids)
