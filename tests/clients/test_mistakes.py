"""What the client says of mistakes: what is wrong, where, and what to do.

They stand in mistakes.txt, in full, below the calls that make them. URL is a server; at NOBODY none listens.
"""

from pathlib import Path

import httpx
import numpy as np
import pytest

from heed_client import AsyncClient, Client

TABLE = Path(__file__).with_name("mistakes.txt").read_text()
CASES = [
    (call, "\n".join(message))
    for call, *message in (case.splitlines() for case in TABLE.strip().removeprefix(">>> ").split("\n>>> "))
]
NAMES = {
    "AsyncClient": AsyncClient,
    "Client": Client,
    "httpx": httpx,
    "S": "scaled_dot_product",
    "ones": np.ones((2, 2)),
}


@pytest.mark.parametrize(("call", "message"), CASES, ids=[call for call, _ in CASES])
def test_a_mistake(client, nobody, monkeypatch, call, message):
    monkeypatch.chdir(Path(__file__).parents[2])
    url = str(client.base_url).rstrip("/")
    said = "nothing"
    with Client(url) as heed:
        try:
            eval(call, {**NAMES, "heed": heed, "URL": url, "NOBODY": nobody})  # noqa: S307  of this repository
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
    assert said.replace(nobody, "NOBODY").replace(url, "URL").replace(url.removeprefix("http://"), "HOST") == message
