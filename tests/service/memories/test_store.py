"""The store: who sees what, how long it lives, what is evicted, and what happens to files that others touched."""

import hashlib
import subprocess
import threading
import time

import httpx
import numpy as np
import orjson
import pytest

from tests.support.attending import attend, post
from tests.support.memories import append, lengths, normal, send, store
from tests.support.server import command, serving
from tests.support.waiting import until

MIB = 1 << 20
KEY = normal(1, 1, 1024, 64)  # 256 KiB


def found(client, memory, status=200):
    """The answer about a memory, of this status."""
    response = client.get(f"/v1/memories/{memory}")
    assert response.status_code == status, response.text
    return response.json()


def evicted(client):
    return client.get("/metrics").text.partition("\nheed_memories_evicted_total ")[2].split()[0]


@pytest.fixture(scope="module")
def small(few_blocks):
    """A server with room for four memories of half a MiB."""
    with serving(few_blocks, "--memories-bytes", str(2 * MIB + 8192)) as client:
        yield client


def test_what_is_told_of_a_memory(client):
    before = len(client.get("/v1/memories").json()["memories"])
    key, value = normal(2, 3, 5, 4), normal(2, 3, 5, 6)
    told = store(client, key=key, value=value, dtype="float16", ttl_seconds=60)
    assert (told["key_shape"], told["value_shape"], told["lengths"]) == ([2, 3, 5, 4], [2, 3, 5, 6], [5, 5])
    assert (told["dtype"], told["block"], told["bytes"]) == ("float16", None, 2 * 2 * 3 * 5 * 10)
    assert told["created"] < told["expires"]
    assert found(client, told["id"]) == told
    assert len(client.get("/v1/memories").json()["memories"]) == before + 1
    assert client.delete(f"/v1/memories/{told['id']}").status_code == 204
    found(client, told["id"], 404)
    assert client.delete(f"/v1/memories/{told['id']}").status_code == 404


def test_every_notation_is_the_same(client):
    key, value = normal(2, 7, 3), normal(2, 7, 5)
    plain = store(client, key=key, value=value)
    nested = send(client, "/v1/memories", key=key.tolist(), value=value.tolist()).json()
    head = orjson.dumps({
        name: {"shape": array.shape, "dtype": "float32", "binary_data_size": array.nbytes}
        for name, array in (("key", key), ("value", value))
    })  # fmt: skip
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    binary = client.post("/v1/memories", content=head + key.tobytes() + value.tobytes(), headers=headers)
    assert binary.status_code == 201, binary.text
    assert plain["content"] == nested["content"] == binary.json()["content"]
    swapped = orjson.dumps(dict(reversed(orjson.loads(head).items())))
    turned = client.post(
        "/v1/memories",
        content=swapped + value.tobytes() + key.tobytes(),
        headers=headers | {"Inference-Header-Content-Length": str(len(swapped))},
    )
    assert turned.json()["content"] == plain["content"]
    unknown = head.replace(b'"dtype"', b'"type"')
    refused = client.post(
        "/v1/memories",
        content=unknown + key.tobytes() + value.tobytes(),
        headers=headers | {"Inference-Header-Content-Length": str(len(unknown))},
    )
    assert (refused.status_code, "unknown field" in refused.json()["detail"]) == (400, True)
    negative = head.replace(b"[2,7,3]", b"[-2,7,-3]")
    refused = client.post(
        "/v1/memories",
        content=negative + key.tobytes() + value.tobytes(),
        headers=headers | {"Inference-Header-Content-Length": str(len(negative))},
    )
    assert (refused.status_code, refused.json()["field"]) == (422, "key"), refused.text
    for short in (head + key.tobytes(), head + key.tobytes() + value.tobytes() + b"more"):
        assert client.post("/v1/memories", content=short, headers=headers).status_code == 400


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


def test_it_expires(client):
    memory = store(client, key=KEY, value=KEY, ttl_seconds=0.5)["id"]
    query = normal(1, 1, 1, 64)
    assert "output" in attend(client, query=query, memory=memory)
    until(lambda: client.get(f"/v1/memories/{memory}").status_code == 404)
    response = post(client, "scaled_dot_product", {"query": query, "memory": memory})
    assert (response.status_code, response.json()["field"]) == (404, "memory")


def test_the_least_recently_used_is_evicted(small):
    memories = [store(small, key=KEY, value=KEY)["id"] for _ in range(4)]
    time.sleep(1.1)  # the times of uses are kept to the second
    attend(small, query=normal(1, 1, 1, 64), memory=memories[0])
    store(small, key=KEY, value=KEY)
    found(small, memories[0])
    found(small, memories[1], 404)
    assert float(evicted(small)) >= 1


def test_more_than_the_limit_is_refused(small):
    response = send(small, "/v1/memories", key=normal(1, 1, 5000, 64), value=normal(1, 1, 5000, 64))
    assert (response.status_code, "memories_bytes" in response.json()["detail"]) == (507, True)


def test_eviction_under_load_gives_right_answers_or_404(small):
    """Each memory has one number as its values, so that an answer tells whose it is."""
    stop, wrong, answers = threading.Event(), [], [0]

    def query_one():
        with httpx.Client(base_url=small.base_url, timeout=60) as client:
            number = 0.0
            while not stop.is_set():
                number += 1
                memory = store(client, key=KEY, value=np.full_like(KEY, number))["id"]
                for _ in range(5):
                    body = {"query": normal(1, 1, 1, 64), "memory": memory, "outputs": ["output"]}
                    response = post(client, "scaled_dot_product", body)
                    if response.status_code == 200:
                        answers[0] += 1
                        if not np.allclose(response.json()["output"], number):
                            wrong.append(response.text[:200])
                    elif response.status_code != 404:
                        wrong.append(response.text)

    threads = [threading.Thread(target=query_one) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: answers[0] > 150)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_appends_at_once_all_count(client):
    """A thousand, from eight clients: each is there once, and what it appended is in one piece."""
    memory = store(client, key=np.zeros((1, 1, 1, 2), np.float32), value=np.zeros((1, 1, 1, 2), np.float32))["id"]

    def append_all(which):
        with httpx.Client(base_url=client.base_url, timeout=60) as own:
            for step in range(125):
                row = np.full((1, 1, 2, 2), 1000 * which + step + 1, np.float32)
                assert append(own, memory, key=row, value=row).status_code == 200

    threads = [threading.Thread(target=append_all, args=(which,)) for which in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lengths(client, memory) == [2001]
    weights = attend(client, "dot_product", query=[[1e-6, 0]], memory=memory, outputs=["scores"])["scores"]
    numbers = np.round(weights.reshape(-1)[1:] * 1e6).astype(int).reshape(-1, 2)
    assert (numbers[:, 0] == numbers[:, 1]).all()
    assert sorted(numbers[:, 0]) == sorted(1000 * which + step + 1 for which in range(8) for step in range(125))


def test_an_append_elsewhere_is_a_conflict(client):
    memory = store(client, key=normal(1, 1, 3, 2), value=normal(1, 1, 3, 2))["id"]
    row = normal(1, 1, 1, 2)
    assert append(client, memory, key=row, value=row, at=3).status_code == 200
    again = append(client, memory, key=row, value=row, at=3)
    assert (again.status_code, lengths(client, memory)) == (409, [4])
    assert append(client, memory, key=normal(1, 2, 1, 2), value=normal(1, 2, 1, 2)).status_code == 422


@pytest.fixture(scope="module")
def keyed(few_blocks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    (folder / "keys").write_text("ours\ntheirs\n")
    (folder / "admin").write_text("chief\n")
    with serving(
        few_blocks, "--api-keys-file", str(folder / "keys"), "--admin-keys-file", str(folder / "admin")
    ) as client:
        yield client


def test_a_key_sees_its_own(keyed):
    ours, theirs, chief = ({"X-API-Key": key} for key in ("ours", "theirs", "chief"))
    assert send(keyed, "/v1/memories", key=KEY, value=KEY).status_code == 401
    memory = send(keyed, "/v1/memories", key=KEY, value=KEY, headers=ours).json()
    path, query = f"/v1/memories/{memory['id']}", {"query": normal(1, 1, 1, 64), "memory": memory["id"]}
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


def damage_state(folder):
    (folder / "state").write_bytes(b"\1" * (folder / "state").stat().st_size)


def damage_description(folder):
    (folder / "memory.json").write_text("{")


def damage_numbers(folder):
    with (folder / "value.0").open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff\x7f")


def remove_numbers(folder):
    (folder / "key.0").unlink()


def cut_numbers(folder):
    with (folder / "key.0").open("r+b") as file:
        file.truncate(100)


DAMAGES = [damage_state, damage_description, damage_numbers, remove_numbers, cut_numbers]


def test_a_damaged_memory_is_gone_and_the_others_live(few_blocks, tmp_path):
    folder, query = tmp_path / "memories", normal(1, 1, 1, 64)
    with serving(few_blocks, "--memories", str(folder)) as client:
        whole, *broken = (store(client, key=KEY, value=KEY)["id"] for _ in range(1 + len(DAMAGES)))
        expected = attend(client, query=query, memory=whole)
    for memory, damage in zip(broken, DAMAGES, strict=True):
        damage(folder / memory)
    with serving(few_blocks, "--memories", str(folder)) as client:
        for memory in broken:
            response = post(client, "scaled_dot_product", {"query": query, "memory": memory})
            assert (response.status_code, response.json()["title"]) == (410, "Gone"), response.text
        np.testing.assert_array_equal(attend(client, query=query, memory=whole)["output"], expected["output"])
        listed = client.get("/v1/memories").json()
        assert whole in [memory["id"] for memory in listed["memories"]]
        assert {memory["id"] for memory in listed["damaged"]} < {*broken}
        for memory in broken:
            assert client.delete(f"/v1/memories/{memory}").status_code == 204
            found(client, memory, 404)


def test_a_folder_has_one_server(few_blocks, tmp_path):
    folder = tmp_path / "memories"
    with serving(few_blocks, "--memories", str(folder)):
        second = subprocess.run(command(few_blocks, "--memories", str(folder)), capture_output=True, text=True)
        assert (second.returncode, "another server uses this folder" in second.stderr) == (2, True)
