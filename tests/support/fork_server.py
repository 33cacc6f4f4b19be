"""Start ``heed serve`` without the second that its imports take: in a fork of a process that has them.

The service forks its own workers like that, and the server's ``main``, arguments and environment are those of the
command. What starts with the command itself is in tests/test_heed.py, tests/export/hf/test_minilm.py and tests/deploy.
"""

import atexit
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MAX_REQUEST = 1 << 20  # bytes, most of them the environment
ENVIRONMENT = dict(os.environ)  # before a test changes it


class ForkedServer:
    """The process of a server, with the methods of ``subprocess.Popen`` that tests call."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status  # the end of a pipe, to which the exit status is written

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.returncode = int(os.read(self._status, 16))
            os.close(self._status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it still runs after ``timeout`` seconds.
        """
        if self.returncode is None and not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("heed serve", timeout or 0)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that forks servers; it ends with the process of the tests."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            arguments = [sys.executable, "-m", __name__, str(theirs.fileno())]
            self._process = subprocess.Popen(arguments, cwd=ROOT, env=ENVIRONMENT, pass_fds=[theirs.fileno()])
        atexit.register(self._close)

    def _close(self) -> None:
        """End the process, which ends when its channel is closed."""
        self._channel.close()
        self._process.wait()

    def start(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        *,
        descriptors: int | None = None,
        linger_s: float = 0,
    ) -> ForkedServer:
        """``heed serve`` with these arguments, its output in ``log``.

        ``descriptors`` is how many files it may have open. When it ends it waits for ``linger_s`` for a client to use
        its connection again, where its own half a second would be too short for clients on a busy machine.
        """
        request = {
            "arguments": arguments,
            "environment": dict(environment),
            "folder": str(Path.cwd()),
            "descriptors": descriptors,
            "linger_s": linger_s,
        }
        reading, writing = os.pipe()
        with log.open("w") as output:
            socket.send_fds(self._channel, [json.dumps(request).encode()], [writing, output.fileno()])
        os.close(writing)
        return ForkedServer(int(self._channel.recv(16)), reading)


def next_request(channel: socket.socket) -> dict[str, Any]:
    """The request for a server, in the fork that becomes it; the parent stays and reports how its children ended."""
    waking, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    statuses: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([channel, waking], [], [])
        if waking in ready:
            os.read(waking, 64)
            _report(statuses)
        if channel not in ready:
            continue
        content, descriptors, _, _ = socket.recv_fds(channel, MAX_REQUEST, 2)
        if not content:
            sys.exit()
        writing, output = descriptors
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            channel.close()
            os.dup2(output, 1)
            os.dup2(output, 2)
            for descriptor in (waking, wake, writing, output, *statuses.values()):
                os.close(descriptor)
            request: dict[str, Any] = json.loads(content)
            return request
        os.close(output)
        statuses[pid] = writing
        channel.send(str(pid).encode())


def _report(statuses: dict[int, int]) -> None:
    """Write the exit status of each process that has ended to its pipe."""
    for pid, descriptor in list(statuses.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            del statuses[pid]
            os.write(descriptor, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(descriptor)


def main() -> int:
    """Wait for requests; in each fork, serve. Returns the exit status."""
    from service.cli.serve import main as serve
    from service.workers import server, supervisor

    request = next_request(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["descriptors"]:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (request["descriptors"], most))
    if request["linger_s"]:
        server.LINGER_S = supervisor.LINGER_S = request["linger_s"]
    return serve(request["arguments"])


if __name__ == "__main__":
    sys.exit(main())
