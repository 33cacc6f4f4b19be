"""``heed probe``: is the service on this machine ready? For a container's health check; light, as it runs often."""

import os
import ssl
import sys
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection

TIMEOUT = 4.0  # seconds


def main(_arguments: Sequence[str] | None = None) -> int:
    """Ask it, at the address of the HEED_* variables; answers the exit status: 0 if it is ready, else 1."""
    host, port = os.environ.get("HEED_HOST", "127.0.0.1"), int(os.environ.get("HEED_PORT", "8000"))
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    connection = HTTPConnection(host, port, timeout=TIMEOUT)
    if os.environ.get("HEED_TLS_CERTIFICATE"):
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE  # it is this machine
        connection = HTTPSConnection(host, port, timeout=TIMEOUT, context=trusting)
    try:
        connection.request("GET", "/v2/health/ready")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        print(f"heed probe: {host}, port {port}: {error}", file=sys.stderr)
        return 1
    print(status)
    return int(status != 200)
