"""Run ``make serve`` and ``make test`` as on a new machine, and print how long each takes.

usage: PYTHON -m scripts.fresh [NAME=VALUE ...]

The last commit is cloned into a temporary folder, and each command runs there with an empty HOME, the PATH, and the
given variables alone: PIP_FIND_LINKS, for example, is a folder with the build of torch that pip is to take.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[1]
READY = re.compile(r" ready: ")
LISTENING = re.compile(r"listening on (\S+)")
READY_TIMEOUT_S = 1800
END_TIMEOUT_S = 60
BODY = b'{"query": [[1, 0], [0, 1]], "key": [[1, 0], [0, 1]], "value": [[1, 0], [0, 1]]}'


def main() -> int:
    """Return the exit status of ``make test``, or 1 if the server did not answer or did not end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variables", nargs="*", type=_variable, metavar="NAME=VALUE", help="for both commands")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="heed-fresh-") as folder:
        checkout, home = Path(folder, "heed"), Path(folder, "home")
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
        environment = {"HOME": str(home), "PATH": _path(), **dict(options.variables)}
        seconds = _serve(checkout, environment)
        print(f"make serve: the first answer after {seconds:.0f} s", flush=True)
        begin = time.monotonic()
        status = subprocess.run(["make", "test"], cwd=checkout, env=environment).returncode
        print(f"make serve: the first answer after {seconds:.0f} s")
        print(f"make test: status {status} after {time.monotonic() - begin:.0f} s")
    return status


def _serve(checkout: Path, environment: Mapping[str, str]) -> float:
    """Start ``make serve``, send one request to a block, and end it with SIGTERM; return the seconds until the answer.

    Raises:
        RuntimeError: the server is not ready in time, or has ended.
        subprocess.TimeoutExpired: the server does not end.
    """
    log = checkout.parent / "serve.log"
    begin = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["make", "serve", "PORT=0"], cwd=checkout, env=environment, stdout=file, stderr=file, start_new_session=True
        )
    try:
        while not READY.search(text := log.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() - begin > READY_TIMEOUT_S:
                raise RuntimeError(f"make serve is not ready:\n{text[-4000:]}")
            time.sleep(0.1)
        url = LISTENING.search(text)
        assert url
        request = Request(f"{url[1]}/v1/attention/scaled_dot_product", BODY, {"Content-Type": "application/json"})
        with urlopen(request, timeout=30) as response:
            assert b"weights" in response.read()
        return time.monotonic() - begin
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(END_TIMEOUT_S)


def _path() -> str:
    """PATH without the environment that runs this script."""
    return os.pathsep.join(
        folder for folder in os.environ["PATH"].split(os.pathsep) if folder != str(Path(sys.prefix, "bin"))
    )


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
