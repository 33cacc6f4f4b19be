"""Memories of a cluster that ended and was started again with the same folders."""

import numpy as np
import pytest

from tests.deploy.ray.nodes import running
from tests.support.attending import attend
from tests.support.memories import append, normal, store

pytestmark = [pytest.mark.extended, pytest.mark.filterwarnings("ignore")]  # the warnings are Ray's own

SDPA = "scaled_dot_product"


def test_memories_with_a_folder_outlive_the_cluster(two_blocks, tmp_path):
    """Even if its nodes are lost and not stopped."""
    key, value, query = normal(500, 8), normal(500, 5, seed=1), normal(3, 8, seed=2)
    settings = {"memories": str(tmp_path), "memory_part_bytes": 4096}
    with running(2) as nodes, nodes.client() as client:
        nodes.serve_running(two_blocks, 1, **settings)
        memory = store(client, key=key[:400], value=value[:400])["id"]
        assert append(client, memory, key=key[400:], value=value[400:]).status_code == 200
        deleted = store(client, key=key, value=value)["id"]
        assert client.delete(f"/v1/memories/{deleted}").status_code == 204
        for node in [*nodes.nodes]:
            nodes.lose(node)
    with running(2) as nodes, nodes.client() as client:
        nodes.serve_running(two_blocks, 1, **settings)
        (listed,) = client.get("/v1/memories").json()["memories"]
        assert (listed["id"], listed["lengths"]) == (memory, [500])
        split = attend(client, SDPA, query=query, memory=memory)
        whole = attend(client, SDPA, query=query, key=key, value=value)
        for name in ("output", "weights"):
            np.testing.assert_allclose(split[name], whole[name], rtol=2e-6, atol=2e-6)
