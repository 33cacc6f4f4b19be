"""How clients reach a server: its URL, certificates, readiness; and arguments by position."""

import re

import httpx
import numpy as np
import pytest

from heed_client import BadRequest, Client, TimedOut, Unreachable
from tests.support.app import App, app_server
from tests.support.client_calls import SDPA, sdpa


def test_a_variable_with_a_wrong_url_is_named(monkeypatch):
    monkeypatch.setenv("HEED_URL", "127.0.0.1:x")
    with pytest.raises(ValueError, match=r"^HEED_URL: expected a URL such as .*, got '127.0.0.1:x'"):
        Client()


@pytest.mark.parametrize("timeout", ["5", 0, -1, True, float("nan")])
def test_a_wrong_timeout_is_refused_where_it_is_given(timeout):
    with pytest.raises(ValueError, match=r"^timeout: expected seconds, a number above 0, or None for no limit, got"):
        Client(timeout=timeout)


def test_the_outputs_of_an_answer_are_listed(sync_heed):
    answer = sync_heed.attend(SDPA, **sdpa(), outputs="lse,weights")
    assert {"lse", "weights", "page", "request_id"} <= set(dir(answer))


@pytest.mark.parametrize("binary", [True, False])
def test_query_key_and_value_by_position_and_outputs_as_text(heed, binary):
    tensors = sdpa()
    named = heed.attend(SDPA, **tensors, outputs=["lse", "weights"], binary=binary)
    by_position = heed.attend(SDPA, *tensors.values(), outputs="lse,weights", binary=binary)
    assert list(by_position) == ["lse", "weights"]
    for name, array in named.items():
        np.testing.assert_array_equal(by_position[name], array)
    assert list(heed.attend(SDPA, *tensors.values(), outputs="weights", binary=binary)) == ["weights"]


def test_ready(heed, connect, closed_address):
    assert heed.ready() is True
    assert heed.wait_ready() is None
    away = connect(f"http://{closed_address}")
    assert away.ready() is False
    with pytest.raises(
        TimedOut, match=f"^http://{closed_address} is not ready after 0.3 s: no answer .*connection refused"
    ):
        away.wait_ready(timeout=0.3, interval=0.1)


def test_a_server_that_is_loading_is_waited_for(connect):
    answers = iter([503, 503, 200])
    heed = connect(transport=httpx.MockTransport(lambda _: httpx.Response(next(answers))))
    assert heed.ready() is False
    heed.wait_ready(timeout=10, interval=0)
    assert next(answers, None) is None


def test_another_server_is_not_waited_for(connect):
    heed = connect("http://other.example", transport=httpx.MockTransport(lambda _: httpx.Response(404)))
    for ask in (heed.ready, heed.wait_ready):
        with pytest.raises(BadRequest, match=r"the answer from http://other\.example is not from Heed"):
            ask()


@pytest.fixture
def https_url(certificate):
    with app_server(App(), certificate) as url:
        yield url


def test_certificates(https_url, certificate, connect):
    assert connect(https_url, cacert=certificate / "certificate").ready()
    assert connect(https_url, verify=False).ready()
    with pytest.raises(Unreachable, match="certificate is not trusted; cacert is"):
        connect(https_url).blocks()


def test_a_block_is_a_table_in_notebooks(sync_heed):
    shown = sync_heed.describe(SDPA)._repr_html_()
    assert all(part in shown for part in ("<code>scaled_dot_product</code>", "$$", "<td", "is_causal", "entropy"))
    assert re.findall("<h4>(.*?)</h4>", shown) == ["inputs", "parameters", "outputs", "outputs on request"]
