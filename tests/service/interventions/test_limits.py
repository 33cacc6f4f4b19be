"""Limits of requests with interventions: texts, and memory before anything is placed."""

import httpx
import pytest

from service.interventions.values import Values
from tests.support.in_process import serving_in_process

ATTENTION, TEXT = "/v1/attention/gpt", "/v1/text/gpt"
pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
TOO_LONG = {"input_ids": [5] * 47}
IN_OWN = {"at": "hidden", "tokens": ["the"], "scale": 0}, TOO_LONG
IN_OTHER = {"at": "hidden", "positions": 0, "from": {**TOO_LONG, "positions": 0}}, {"input_ids": [5]}


def test_texts_of_other_runs_are_limited_together(generating):
    """As one text of a request is."""
    with serving_in_process(generating / "models", max_text_bytes=100) as service:
        added = {"at": "hidden", "add": {"text": "the cat " * 5}}
        statuses = [
            httpx.post(f"http://127.0.0.1:{service.port}{TEXT}", json={"text": "the", "interventions": [added] * count})
            for count in (2, 3)
        ]
    assert [answer.status_code for answer in statuses] == [200, 413]
    assert (statuses[1].json()["field"], "max_text_bytes" in statuses[1].json()["detail"]) == ("interventions", True)


def test_memory_beyond_the_limit_is_refused(generating):
    with serving_in_process(generating / "models", max_memory_bytes=400_000) as service:
        url = f"http://127.0.0.1:{service.port}{ATTENTION}"
        place = {"at": "weights", "queries": 40, "keys": 3, "scale": 0}
        hidden = {"at": "hidden", "scale": 0}
        bodies = [
            {"input_ids": [5] * 48, "outputs": ["output"], **more}
            for more in ({}, {"interventions": [hidden]}, {"interventions": [place]})
        ]
        *others, response = (httpx.post(url, json=body) for body in bodies)
    assert [other.status_code for other in others] == [200, 200]
    assert (response.status_code, "max_memory_bytes" in response.text) == (413, True), response.text


@pytest.mark.parametrize(("change", "inputs"), [IN_OWN, IN_OTHER])
@pytest.mark.parametrize("path", ["/v1/attention/gpt", "/v1/lens/gpt", "/v1/sweep/gpt", "/v1/generate/gpt"])
def test_places_take_no_memory_in_a_run_that_is_too_long(path, change, inputs, generating, monkeypatch):
    """They grow with its positions, of which a compressed body may have very many."""
    placed = []
    monkeypatch.setattr(Values, "place", lambda *_: placed.append(None))
    own = {"intervention": change, "over": {"layers": "all"}} if "sweep" in path else {"interventions": [change]}
    with serving_in_process(generating / "models", max_memory_bytes=100_000) as service:
        response = httpx.post(f"http://127.0.0.1:{service.port}{path}", json={**inputs, **own})
    assert (response.status_code, response.json()["code"]) == (413, "too_much_memory"), response.text
    assert not placed
