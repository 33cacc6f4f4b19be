"""What is reported is what really happened: stalls, refusals, broken connections, arrivals."""

import socket
from threading import Thread

import pytest

from loadtest.pool import WorkerPool
from tests.support.app import App


@pytest.fixture
def load(measure, scenario):
    """Puts load on a server; answers the result of its one level."""

    def run(url, *flags, status=0):
        (result,) = measure(url, "--scenario", scenario, *flags, status=status)["results"]
        return result

    return run


def test_an_open_loop_charges_a_stall_to_every_request_that_came_due(served, load):
    """Half a second still, in one and a half, at 200 a second: a third of all requests wait, for 0 to 0.5 s."""
    result = load(served(App(stall=0.5, after=150)), "--rate", 200, "--seconds", 1.5)
    assert result["max"] > 450
    assert result["p50"] < result["max"] / 2
    assert result["p90"] > 100  # 0.5 s - 0.1 * 1.5 s = 0.35 s
    assert result["requests"] == pytest.approx(300, rel=0.4)
    assert not result["errors"]
    assert not result["steady"]


def test_a_closed_loop_sees_a_stall_once_for_each_connection(served, load):
    flags = ["--concurrency", 1, "--seconds", 1.5, "--window", 0.02, "--max-warmup", 0.02]
    result = load(served(App(stall=0.5, after=150)), *flags)
    assert result["max"] > 450
    assert result["p99"] < result["max"] / 2


def test_an_open_loop_keeps_its_rate_and_its_own_time(served, load):
    result = load(served(App()), "--rate", 300, "--seconds", 1, "--processes", 2)
    assert result["requests"] == pytest.approx(300, abs=5 * 300**0.5)  # Poisson's deviation is the root
    assert result["generator"]["processes"] == 2


def test_requests_that_are_not_answered_in_time_are_errors(served, load):
    flags = ["--rate", 200, "--seconds", 1, "--timeout", 0.3, "--connections", 4]
    result = load(served(App(stall=1, after=100)), *flags)
    assert result["errors"]["timeout"] >= 4
    assert result["failed"] > 0


def test_statuses_are_counted_and_not_timed(served, load, capsys):
    """The first look is answered, nothing after it."""
    url = served(App(status=503, after=2))
    result = load(url, "--concurrency", 2, "--fail-if", "failed>0.1%", status=2)
    assert result["errors"].keys() == {"status 503"}
    assert result["requests"] == 0
    assert result["failed"] == 1
    assert not result["steady"]
    assert f"{url} answered no request with 200" in capsys.readouterr().err


def test_connections_that_are_closed_are_made_again(served, load):
    result = load(served(App(closing=True)), "--concurrency", 2)
    assert result["requests"] > 10
    assert not result["errors"]


def test_a_server_that_ends_is_an_error_not_a_crash(load):
    """It answers the first request, and then listens no more."""
    listening = socket.create_server(("127.0.0.1", 0))

    def once() -> None:
        connection, _ = listening.accept()
        listening.close()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    thread = Thread(target=once)
    thread.start()
    result = load(f"http://127.0.0.1:{listening.getsockname()[1]}", "--concurrency", 2, status=2)
    thread.join()
    assert result["requests"] == 0
    assert [error for error in result["errors"] if error.startswith("no connection")]


def test_a_process_of_the_load_that_ends_is_an_error_and_none_is_left_behind():
    with WorkerPool(2) as pool:
        pool._processes[0].kill()
        pool._processes[0].wait()
        pool._active = pool._pipes
        with pytest.raises(RuntimeError, match="a process that makes the load has ended"):
            list(pool.samples(10))
    assert all(process.poll() is not None for process in pool._processes)
