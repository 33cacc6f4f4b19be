"""How clients reach a server: its URL, certificates, readiness; and arguments by position."""

import socket
import ssl

import httpx
import numpy as np
import pytest

import heed_client
from heed_client import BadRequest, Client, TimedOut, Unreachable
from tests.support.client_calls import SDPA, sdpa
from tests.support.server import started


@pytest.fixture
def nobody():
    """The address of a port at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_a_url_without_a_scheme_is_of_http(connect, client):
    heed = connect(f"{client.base_url.host}:{client.base_url.port}")
    assert SDPA in [block.block for block in heed.blocks()]


def test_the_variable_may_have_no_scheme_either(client, monkeypatch):
    monkeypatch.setenv("HEED_URL", f"{client.base_url.host}:{client.base_url.port}/")
    with Client() as heed:
        assert heed.describe(SDPA).block == SDPA
    monkeypatch.setenv("HEED_URL", "127.0.0.1:x")
    with pytest.raises(ValueError, match=r"^HEED_URL: expected a URL such as .*, got '127.0.0.1:x'"):
        Client()


def test_requests_say_which_client_they_are_of():
    seen = []
    transport = httpx.MockTransport(lambda request: seen.append(request) or httpx.Response(200, json={"blocks": []}))
    with Client("http://heed.example", transport=transport) as heed:
        assert heed.blocks() == []
    assert seen[0].headers["User-Agent"] == f"heed-client/{heed_client.__version__}"
    assert heed_client.__version__[0].isdigit()


def test_query_key_and_value_by_position(heed):
    tensors = sdpa()
    named = heed.attend(SDPA, **tensors)
    by_position = heed.attend(SDPA, *(tensors[name] for name in ("query", "key", "value")))
    np.testing.assert_array_equal(by_position.weights, named.weights)
    np.testing.assert_array_equal(by_position.output, named.output)


@pytest.mark.parametrize(("outputs", "found"), [("weights", ["weights"]), ("lse,weights", ["lse", "weights"])])
@pytest.mark.parametrize("binary", [True, False])
def test_outputs_as_text(heed, outputs, found, binary):
    assert sorted(heed.attend(SDPA, **sdpa(), outputs=outputs, binary=binary)) == found


def test_ready(heed, connect, nobody):
    assert heed.ready() is True
    assert heed.wait_ready() is None
    away = connect(f"http://{nobody}")
    assert away.ready() is False
    with pytest.raises(TimedOut, match=f"^http://{nobody} is not ready after 0.3 s: no answer .*connection refused"):
        away.wait_ready(timeout=0.3, interval=0.1)


def test_a_server_that_is_loading_is_waited_for():
    answers = iter([503, 503, 200])
    transport = httpx.MockTransport(lambda _: httpx.Response(next(answers)))
    with Client(transport=transport) as heed:
        assert heed.ready() is False
        heed.wait_ready(timeout=10, interval=0)
    assert next(answers, None) is None


def test_another_server_is_not_waited_for():
    with Client("http://other.example", transport=httpx.MockTransport(lambda _: httpx.Response(404))) as heed:
        with pytest.raises(BadRequest, match=r"no answer of Heed from http://other\.example"):
            heed.ready()
        with pytest.raises(BadRequest):
            heed.wait_ready()


def test_certificates(connect, models, tmp_path, certificate):
    file = certificate / "certificate"
    flags = ["--tls-certificate", str(file), "--tls-key", f"{certificate}/key"]
    with started(models, tmp_path / "log", *flags, trust=ssl.create_default_context(cafile=file)) as service:
        with Client(service.url, cacert=file) as heed:
            assert heed.ready()
        with Client(service.url, verify=False) as heed:
            assert heed.ready()
        with Client(service.url) as heed, pytest.raises(Unreachable, match="certificate is not trusted; cacert names"):
            heed.blocks()


def test_a_block_is_a_table_in_notebooks(heed):
    shown = heed.describe(SDPA)._repr_html_()
    assert all(part in shown for part in ("<code>scaled_dot_product</code>", "$$", "<td", "is_causal", "entropy"))
    assert shown.count("<table>") == shown.count("</table>") == 4
