"""``heed probe``: whether a server is ready. For containers' health checks, so it imports little."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from heed_options import DEFAULT_URL, Parser, add_access, url_option, url_variable
from service.cli.ask import NoAnswer, get

TIMEOUT_S = 4.0
EVERY_INTERFACE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # address listened on -> address to ask
OF_SERVER = ("HEED_HOST", "HEED_PORT", "HEED_MONITORING_PORT", "HEED_TLS_CERTIFICATE")


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask the server of the flags or the HEED_* variables. Returns the exit status: 0 if it is ready."""
    flags = parser()
    options = flags.parse_args(arguments)
    here = options.host, options.port, options.tls_certificate
    if options.url and any(here):
        flags.error("--url: cannot be combined with --host, --port or --tls-certificate")
    url, is_here = _server(options)
    # A server on this machine is trusted: its certificate is made out to another name than 127.0.0.1.
    insecure = options.insecure or is_here
    path = "/v2/health/ready"
    try:
        status, _ = get(url, path, TIMEOUT_S, options.api_key, options.cacert, insecure)
    except NoAnswer as error:
        print(f"heed probe: {error}", file=sys.stderr)
        return 1
    print(f"{'ready' if status == 200 else 'not ready'}: {status} {url.rstrip('/')}{path}")
    return int(status != 200)


def _server(options: Any) -> tuple[str, bool]:
    """Its URL, and whether flags or variables of ``heed serve`` name it."""
    environment = os.environ.get
    if options.url:
        return options.url, False
    given = options.host, options.port, options.tls_certificate
    variable = None if any(given) or any(map(environment, OF_SERVER)) else url_variable(parser())
    if variable:
        return variable, False
    host = options.host if options.host is not None else environment("HEED_HOST", "127.0.0.1")
    host = EVERY_INTERFACE.get(host, host)
    port = options.port or _port_variable()
    scheme = "https" if options.tls_certificate or environment("HEED_TLS_CERTIFICATE") else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}", True


def _port_variable() -> int:
    """HEED_MONITORING_PORT, which answers at any load, unless it is 0; else HEED_PORT. A wrong one exits with 2."""
    monitoring = os.environ.get("HEED_MONITORING_PORT", "")
    if monitoring.isdecimal() and int(monitoring) == 0:
        monitoring = ""
    try:
        return _port(monitoring or os.environ.get("HEED_PORT") or "8000")
    except argparse.ArgumentTypeError as error:
        parser().error(f"argument --port: {error} (from HEED_MONITORING_PORT or HEED_PORT)")


def parser() -> Parser:
    """The flags."""
    parser = Parser(
        prog="heed probe",
        description="Check whether a server is ready; print that and the status of the answer.",
        epilog="exit status: 0 ready; 1 not ready, or no answer; 2 a wrong flag or variable.",
    )
    add = parser.add_argument
    add("--url", type=url_option, help="the server (HEED_URL if none of the variables below is set, "
        f"default {DEFAULT_URL})")  # fmt: skip
    add_access(parser)
    add = parser.add_argument_group("the server on this machine, in place of --url").add_argument
    add("--host", metavar="HOST",
        help="address heed serve listens on (HEED_HOST); 0.0.0.0 and :: mean this machine")  # fmt: skip
    add("--port", type=_port, metavar="PORT",
        help="its port (HEED_MONITORING_PORT if that is set and not 0, else HEED_PORT)")  # fmt: skip
    add("--tls-certificate", metavar="FILE",
        help="if given, use HTTPS and accept any certificate (HEED_TLS_CERTIFICATE)")  # fmt: skip
    return parser


def _port(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to 65535, got {text!r}")
    return int(text)
