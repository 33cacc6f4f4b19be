"""``heed probe``: whether the service on this machine is ready. For containers' health checks, so it imports little."""

import argparse
import os
import ssl
import sys
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection

TIMEOUT_S = 4.0
EVERY_INTERFACE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # address listened on -> address to ask


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask the address in the flags or the HEED_* variables. Returns the exit status: 0 if the service is ready."""
    options = _parser().parse_args(arguments)
    host, port = EVERY_INTERFACE.get(options.host, options.host), options.port
    connection = HTTPConnection(host, port, timeout=TIMEOUT_S)
    if options.tls_certificate:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is on this machine
        connection = HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
    try:
        connection.request("GET", "/v2/health/ready")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        print(f"heed probe: {host}, port {port}: {error}", file=sys.stderr)
        return 1
    finally:
        connection.close()
    print(status)
    return int(status != 200)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="heed probe",
        description="Is the service on this machine ready? Prints the status of its readiness.",
        epilog="exit status: 0 ready; 1 not ready, or no answer; 2 a wrong flag or variable.",
        allow_abbrev=False,
    )
    environment = os.environ.get
    parser.add_argument(
        "--host", default=environment("HEED_HOST", "127.0.0.1"),
        help="address heed serve listens on (HEED_HOST, default 127.0.0.1); 0.0.0.0 and :: mean this machine",
    )  # fmt: skip
    parser.add_argument(
        "--port", type=_port, default=_monitoring_port() or environment("HEED_PORT", "8000"),
        help="its port (HEED_MONITORING_PORT if that is set and not 0, else HEED_PORT, default 8000)",
    )  # fmt: skip
    parser.add_argument(
        "--tls-certificate", metavar="FILE", default=environment("HEED_TLS_CERTIFICATE"),
        help="if given, ask by HTTPS, and trust whatever answers (HEED_TLS_CERTIFICATE)",
    )  # fmt: skip
    return parser


def _monitoring_port() -> str:
    """HEED_MONITORING_PORT, which answers at any load; empty where there is none: not set, or 0."""
    text = os.environ.get("HEED_MONITORING_PORT", "")
    return "" if text.isdecimal() and int(text) == 0 else text


def _port(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to 65535, got {text!r}")
    return int(text)
