"""The one way to start ``heed serve`` for a test: on a port of its own choice, with its output in a file.

``HEED_TEST_PROVIDER`` (cpu, unless it says cuda) is where these servers run models.
"""

import os
import re
import ssl
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path

import httpx

from tests.support.fork_server import ForkedServer, ForkServer
from tests.support.http_client import Connection, gauge, is_ready
from tests.support.waiting import until

MIB = 1 << 20
PROVIDER = os.environ.get("HEED_TEST_PROVIDER", "cpu")
START_TIMEOUT_S = 120 if PROVIDER == "cpu" else 300
END_TIMEOUT_S = 10  # after the test; then the process is killed
LOG_END = 6000  # characters of the log that a failure shows
LISTENING = re.compile(r"listening on https?://127\.0\.0\.1:(\d+)")


class ServerProcess:
    """A running ``heed serve``, with its log."""

    def __init__(
        self, process: subprocess.Popen | ForkedServer, log: Path, port: int, trust: ssl.SSLContext | None = None
    ) -> None:
        self.process = process
        self.log = log
        self.port = port
        self._trust = trust

    @property
    def url(self) -> str:
        return f"{'https' if self._trust else 'http'}://127.0.0.1:{self.port}"

    def connect(self) -> Connection:
        return Connection(self.port, self._trust)

    def is_ready(self) -> bool:
        """What the next worker in turn answers."""
        return is_ready(self.port, self._trust)

    def add(self) -> None:
        """A new connection's request to the adder is answered."""
        with closing(self.connect()) as connection:
            connection.add()

    def logged(self, words: str) -> int:
        """How many times the log says this."""
        return self.log.read_text().count(words)

    def gauge(self, name: str) -> float:
        return gauge(self.port, name, self._trust)

    def resident(self, line: str = "VmRSS") -> int:
        """Bytes; ``line`` is one of /proc/PID/status."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(rf"{line}:\s+(\d+) kB", status)[1])

    def workers(self) -> set[int]:
        """The processes beneath the supervisor."""
        try:
            return set(map(int, Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()))
        except OSError:
            return set()

    def worker_of(self) -> dict[int, int]:
        """Client's port -> the worker that has its connection, for all that are open."""
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        address = f"0100007F:{self.port:04X}"
        ports = {
            line[9]: int(line[2].partition(":")[2], 16) for line in lines if line[1] == address and line[3] == "01"
        }
        workers = {}
        for worker in self.workers():
            for inode in sockets(worker):
                if inode in ports:
                    workers[ports[inode]] = worker
        return workers

    def spread(self) -> list[int]:
        """How many connections each worker has."""
        counts = Counter(self.worker_of().values())
        return sorted(counts[worker] for worker in self.workers())

    def ended(self, timeout_s: float = 60) -> int:
        """The exit status as shells and containers have it: 128 and the signal's number, where one ended it."""
        status = self.process.wait(timeout_s)
        return 128 - status if status < 0 else status


def sockets(pid: int) -> set[str]:
    """The inodes of the sockets that a process has open."""
    inodes = set()
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                name = os.readlink(descriptor)
                if name.startswith("socket:["):
                    inodes.add(name[8:-1])
    return inodes


def is_pending(pid: int, number: int) -> bool:
    """Whether the signal waits for the process; of one kind there is never more than one that waits."""
    status = Path(f"/proc/{pid}/status").read_text()
    return any(int(mask, 16) >> (number - 1) & 1 for mask in re.findall(r"(?:SigPnd|ShdPnd):\s+(\S+)", status))


def listening_port(process: subprocess.Popen) -> int | None:
    """The port that the process listens on, for servers whose log cannot be read."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    own = sockets(process.pid)
    ports = [int(line[1].partition(":")[2], 16) for line in lines if line[3] == "0A" and line[9] in own]
    assert process.poll() is None, "the server has ended"
    return ports[0] if ports else None


def command(models: Path, *flags: str) -> list[str]:
    """``heed serve`` over ``models``."""
    return [sys.executable, "-m", "service", *_arguments(models, *flags)]


def _arguments(models: Path, *flags: str) -> list[str]:
    """Those of ``heed serve`` over ``models``, on a free port."""
    return ["--port", "0", "--model-repository", str(models), *flags]


@cache
def fork_server() -> ForkServer:
    """The one of this process."""
    return ForkServer()


@contextmanager
def launched(
    arguments: Sequence[str | Path],
    log: Path,
    *,
    trust: ssl.SSLContext | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[ServerProcess]:
    """The process of a command that serves, from when it listens; the test's failure shows the end of its log."""
    with log.open("w") as file:
        process = subprocess.Popen(
            arguments, env=_variables() | (environment or {}), stdout=file, stderr=subprocess.STDOUT
        )
    with _running(process, log, trust) as server:
        yield server


def _variables() -> dict[str, str]:
    """The environment of a server."""
    return {"HEED_PROVIDER": PROVIDER, **os.environ}


@contextmanager
def _running(
    process: subprocess.Popen | ForkedServer, log: Path, trust: ssl.SSLContext | None
) -> Iterator[ServerProcess]:
    def listening() -> re.Match[str] | None:
        assert process.poll() is None, "the server ended"
        return LISTENING.search(log.read_text())

    try:
        yield ServerProcess(process, log, int(until(listening, START_TIMEOUT_S)[1]), trust)
    except BaseException as error:
        error.add_note(f"The server's log ends:\n{log.read_text(errors='replace')[-LOG_END:]}")
        raise
    finally:
        process.terminate()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def started(
    models: Path,
    log: Path,
    *flags: str,
    descriptors: int | None = None,
    linger_s: float = 0,
    trust: ssl.SSLContext | None = None,
    becomes_ready: bool = True,
) -> Iterator[ServerProcess]:
    """A server, once each worker has tried to load its models, and is ready unless ``becomes_ready`` says otherwise.

    ``descriptors`` and ``linger_s`` are those of ``ForkServer.start``.
    """
    workers = int(flags[flags.index("--workers") + 1]) if "--workers" in flags else 1
    process = fork_server().start(
        _arguments(models, *flags), log, _variables(), descriptors=descriptors, linger_s=linger_s
    )
    with _running(process, log, trust) as server:
        if becomes_ready:
            until(lambda: all(server.is_ready() for _ in range(2 * workers)), START_TIMEOUT_S)
        else:
            until(lambda: server.log.read_text().count("ready: ") == workers, START_TIMEOUT_S)
        yield server


@contextmanager
def serving(models: Path, *flags: str) -> Iterator[httpx.Client]:
    """A client of a server that is ready, whose log nobody needs."""
    with (
        tempfile.TemporaryDirectory() as folder,
        started(models, Path(folder) / "log", *flags) as server,
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        yield client
        status = server.process.poll()
        assert status is None, f"the server has ended with status {status}:\n{server.log.read_text()[-LOG_END:]}"
