"""What is reported is what really happened: stalls, refusals, broken connections, arrivals."""

import json
import socket

import pytest

from loadtest.__main__ import main
from tests.support.app import App

QUICK = ["--window", "0.2", "--max-warmup", "0.6"]


def run(tmp_path, *flags, status=0):
    out = tmp_path / "out.json"
    assert main([*map(str, flags), *QUICK, "--json", str(out)]) == status
    (result,) = json.loads(out.read_text())["results"]
    return result


def test_an_open_loop_charges_a_stall_to_every_request_that_came_due(served, scenario, tmp_path):
    """One second still, in three, at 200 a second: a third of all requests wait, for 0 to 1 s, evenly.

    Each bound is far from that, as a busy machine stops this process, too.
    """
    url = served(App(stall=1, after=250))
    found = run(tmp_path, url, "--scenario", scenario, "--rate", 200, "--seconds", 3)
    assert 900 < found["max"] < 2000
    slower = dict(found["curve"])
    assert slower[50] < 500  # two thirds do not wait
    assert slower[76] > 150  # 1 - 0.24 * 3 = 0.28 s
    assert slower[88] > 400  # 0.64 s
    assert found["requests"] == pytest.approx(600, rel=0.4)
    assert not found["errors"]
    assert not found["steady"]


def test_a_closed_loop_sees_a_stall_once_for_each_connection(served, scenario, tmp_path):
    url = served(App(stall=1, after=250))
    found = run(tmp_path, url, "--scenario", scenario, "--concurrency", 1, "--seconds", 3)
    assert 900 < found["max"] < 2000
    assert found["p99"] < 500


def test_an_open_loop_keeps_its_rate_and_its_own_time(served, scenario, tmp_path):
    found = run(tmp_path, served(App()), "--scenario", scenario, "--rate", 300, "--seconds", 2, "--processes", 2)
    assert found["requests"] == pytest.approx(600, abs=5 * 600**0.5)  # Poisson's deviation is the root
    assert found["generator"]["processes"] == 2


def test_requests_that_are_not_answered_in_time_are_errors(served, scenario, tmp_path):
    url = served(App(stall=1.5, after=150))
    flags = ["--rate", 200, "--seconds", 1.5, "--timeout", 0.5, "--connections", 4]
    found = run(tmp_path, url, "--scenario", scenario, *flags)
    assert found["errors"]["timeout"] >= 4
    assert found["failed"] > 0


def test_statuses_are_counted_and_not_timed(served, scenario, tmp_path):
    url = served(App(status=503, after=2))
    found = run(tmp_path, url, "--scenario", scenario, "--concurrency", 2, "--seconds", 0.5, status=2)
    assert found["errors"].keys() == {"status 503"}
    assert found["requests"] == 0
    assert found["failed"] == 1
    assert not found["steady"]


def test_connections_that_are_closed_are_made_again(served, scenario, tmp_path):
    found = run(tmp_path, served(App(closing=True)), "--scenario", scenario, "--concurrency", 2, "--seconds", 0.5)
    assert found["requests"] > 20
    assert not found["errors"]


def test_a_server_that_ends_is_an_error_not_a_crash(scenario, tmp_path):
    """It answers the first request, and then listens no more."""
    from threading import Thread

    listening = socket.create_server(("127.0.0.1", 0))

    def once() -> None:
        connection, _ = listening.accept()
        listening.close()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    thread = Thread(target=once)
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    found = run(tmp_path, url, "--scenario", scenario, "--concurrency", 2, "--seconds", 0.5, status=2)
    thread.join()
    assert found["requests"] == 0
    assert [error for error in found["errors"] if error.startswith("no connection")]
