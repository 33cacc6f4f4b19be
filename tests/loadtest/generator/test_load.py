"""What is reported is what really happened: stalls, refusals, broken connections, arrivals."""

import asyncio
import socket
import time
from random import Random
from threading import Thread

import numpy as np
import pytest

from loadtest.generator.arrivals import Arrivals
from loadtest.generator.pool import WorkerPool
from tests.support.app import App
from tests.support.waiting import until_async


def test_an_open_loop_charges_a_stall_to_every_request_that_came_due(served, load):
    """Half a second still, in one and a half, at 200 a second: a third of all requests wait, for 0 to 0.5 s."""
    (result,) = load(served(App(stall=0.5, after=150)), "--rate", 200, "--seconds", 1.5)["results"]
    assert result["max"] > 450
    assert result["p50"] < result["max"] / 2
    assert result["p90"] > 100  # 0.5 s - 0.1 * 1.5 s = 0.35 s
    assert result["requests"] > 240  # some 300, and 200 without those that came due in the stall
    assert not result["errors"]
    assert not result["steady"]


@pytest.mark.extended  # it depends on the machine's pace
def test_a_closed_loop_sees_a_stall_once_for_each_connection(served, load):
    flags = ["--concurrency", 1, "--seconds", 1.5, "--window", 0.02, "--max-warmup", 0.02]
    (result,) = load(served(App(stall=0.5, after=150)), *flags)["results"]
    assert result["max"] > 450
    assert result["p99"] < result["max"] / 2


def test_requests_that_are_not_answered_in_time_are_errors(served, load):
    flags = [
        "--rate",
        200,
        "--seconds",
        1,
        "--timeout",
        0.3,
        "--connections",
        4,
        "--window",
        0.02,
        "--max-warmup",
        0.02,
    ]
    (result,) = load(served(App(stall=1, after=100)), *flags)["results"]
    assert result["errors"]["timeout"] >= 4
    assert result["failed"] > 0


def test_requests_without_a_free_connection_are_never_sent(served, load):
    """The server stands still in the second level; its only connection has sent a request."""
    flags = ["--rate", "50,1000", "--seconds", 0.5, "--timeout", 0.3, "--connections", 1, "--fail-if", "failed>0.1%"]
    first, second = load(served(App(stall=3, after=400)), *flags, status=1)["results"]
    assert first["requests"] > 0
    sent = [reason for reason in second["errors"] if reason.startswith("never sent")]
    assert second["errors"][sent[0]] > 10 * second["errors"].get("never answered", 0)


def test_connections_that_are_closed_are_made_again(served, load):
    (result,) = load(served(App(closing=True)), "--concurrency", 2)["results"]
    assert result["requests"] > 10
    assert not result["errors"]


def test_a_server_that_ends_is_an_error_not_a_crash(load):
    """It answers the first request, and then listens no more."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer_once() -> None:
        connection, _ = listening.accept()
        listening.close()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    thread = Thread(target=answer_once)
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    (result,) = load(url, "--concurrency", 2, status=2)["results"]
    thread.join()
    assert result["requests"] == 0
    assert [error for error in result["errors"] if error.startswith("no connection")]


def test_a_process_of_the_load_that_ends_is_an_error_and_none_is_left_behind():
    with WorkerPool(2) as pool:
        pool._processes[0].kill()
        pool._processes[0].join()
        pool._active = pool._pipes
        with pytest.raises(RuntimeError, match="a process of the load generator has exited"):
            list(pool.samples(10))
    assert all(process.exitcode is not None for process in pool._processes)


def test_arrivals_are_random_and_none_is_left_out_when_the_loop_stands_still():
    async def listen() -> list[float]:
        due: list[float] = []
        arrivals = Arrivals(asyncio.get_running_loop(), 2000, Random(0), due.append)
        arrivals.start()
        await until_async(lambda: due and due[-1] - due[0] > 0.2)
        time.sleep(0.3)  # as a loop that is busy
        await until_async(lambda: due[-1] - due[0] > 0.7)
        arrivals.stop()
        return due

    due = asyncio.run(listen())
    gaps = np.diff(due)
    assert len(due) == pytest.approx(2000 * (due[-1] - due[0]), rel=0.15)
    assert gaps.max() < 0.02  # the stall is in no gap
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.2)  # exponential


def test_slow_arrivals_end_at_once():
    """And not with the next arrival, after a thousand seconds: longer than a test may take."""

    async def listen() -> None:
        arrivals = Arrivals(asyncio.get_running_loop(), 0.001, Random(0), [].append)
        arrivals.start()
        arrivals.stop()

    asyncio.run(listen())
