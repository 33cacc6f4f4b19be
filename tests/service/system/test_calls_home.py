"""A serving process asks nobody for anything, and writes nowhere that it was not told to."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# Runs in a network of its own, where the only connections are those it counts: its own to the server.
WATCHED = """
import os, socket, subprocess, sys
from contextlib import closing
from pathlib import Path
from tests.support.server import command, launched
from tests.support.waiting import until

models, log, workers = sys.argv[1:4]
paths = ("/docs", "/openapi.json", "/v2", "/v1/attention", "/nowhere")

def counted():
    lines = [line.split() for line in Path("/proc/self/net/snmp").read_text().splitlines()]
    counts = {}
    for names, values in zip(lines[::2], lines[1::2]):
        counts |= {f"{names[0]}{name}": int(value) for name, value in zip(names[1:], values[1:])}
    return {name: counts[name] for name in ("Tcp:ActiveOpens", "Udp:OutDatagrams", "Ip:OutNoRoutes", "Icmp:OutMsgs")}

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
with launched(command(models, "--workers", workers), Path(log)) as server:
    until(lambda: server.logged("ready: ") == int(workers))
    for _ in range(20):
        server.add()
    for path in paths:
        with closing(server.connect()) as connection:
            connection.request("GET", path)
            assert connection.getresponse().read()
    for process in [server.process.pid, *server.workers()]:
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            try:
                target = os.readlink(descriptor)
                flags = Path(f"/proc/{process}/fdinfo/{descriptor.name}").read_text()
            except FileNotFoundError:
                continue
            may_write = int(flags.split("flags:")[1].split()[0], 8) & os.O_ACCMODE != os.O_RDONLY
            if may_write and target.startswith("/") and not target.startswith("/dev/"):
                assert target == log, target
    server.process.terminate()
    assert server.ended() == 0
expected = {"Tcp:ActiveOpens": 20 + len(paths), "Udp:OutDatagrams": 0, "Ip:OutNoRoutes": 0, "Icmp:OutMsgs": 0}
assert counted() == expected, (counted(), expected)
try:  # a datagram to a stranger would be counted
    socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53))
except OSError:
    pass
assert counted()["Ip:OutNoRoutes"] == 1, counted()
"""


def can_isolate() -> bool:
    if not (shutil.which("unshare") and shutil.which("ip")):
        return False
    return subprocess.run(["unshare", "-rn", "ip", "link", "set", "lo", "up"], capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(
        not can_isolate(),
        reason="no network namespaces here: apt-get install util-linux iproute2, allow user namespaces",
    ),
]


@pytest.mark.parametrize(("workers", "home"), [("1", "its own"), ("2", "its own"), ("2", "none")])
def test_a_server_calls_nobody_and_writes_nowhere(adder, tmp_path, workers, home):
    """From start to end: no connection, no datagram; in its home, its folder for temporary files and where it stands
    nothing is left. Without a home, and with no place for temporary files, it serves all the same."""
    places = {name: tmp_path / name for name in ("home", "temporary", "here")}
    for place in places.values():
        place.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "HOME", "TMP"))}
    environment |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'clients'}", "PYTHONDONTWRITEBYTECODE": "1"}
    own = {"HOME": str(places["home"]), "TMPDIR": str(places["temporary"])}
    environment |= own if home == "its own" else {"TMPDIR": "/nonexistent"}
    before = files(adder)
    command = ["unshare", "-rn", sys.executable, "-c", WATCHED, str(adder), str(tmp_path / "log"), workers]
    done = subprocess.run(command, cwd=places["here"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + (tmp_path / "log").read_text()
    for place in places.values():
        assert not files(place)
    assert files(adder) == before


def files(folder: Path) -> dict[str, int]:
    """Path -> when it was written last, of all that is in a folder."""
    return {str(file): file.stat().st_mtime_ns for file in folder.rglob("*")}
