"""The head of a request: what this server does not serve, and the length of the body that follows."""

import re
from collections.abc import Sequence

MAX_HEADER_FIELDS = 100
MAX_PATH_BYTES = 1 << 11  # as it was sent, percent-encoded; each route's pattern is tried on it
MAX_QUERY_BYTES = 1 << 12
HOST = re.compile(rb"(?:\[[\w.:%~-]+\]|[\w.~!$&'()*+;=%-]*)(?::\d*)?")


class UnsupportedRequest(Exception):
    """A well-formed head that this server does not serve. Raised in callbacks of the parser."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def body_length(url: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    """The length of the body in bytes, None where it comes in chunks. Names of ``headers`` are in lower case.

    Raises:
        UnsupportedRequest: the head does not say where the request goes or where its body ends, or says so in a
            way that this server does not know, or at too great a length.
    """
    if len(url) > MAX_PATH_BYTES:
        _check_target(url)
    hosts, length, codings = [], 0, []
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"content-length":
            length = int(value)
        elif name == b"transfer-encoding":
            codings.append(value.lower())
    if version not in ("1.0", "1.1"):
        raise UnsupportedRequest(505, f"HTTP/{version} is not supported: expected HTTP/1.1 or HTTP/1.0.")
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        raise UnsupportedRequest(400, f"Expected one Host header, got {len(hosts)}.")
    if hosts and not HOST.fullmatch(hosts[0]):
        raise UnsupportedRequest(400, "The Host header is not a host with an optional port.")
    if codings and version == "1.0":
        raise UnsupportedRequest(400, "Transfer-Encoding is not part of HTTP/1.0.")
    if codings and codings != [b"chunked"]:
        raise UnsupportedRequest(501, "This Transfer-Encoding is not supported: expected only chunked.")
    return None if codings else length


def _check_target(url: bytes) -> None:
    """Raise UnsupportedRequest if the path or the query string of ``url`` is too long."""
    path, _, query = url.partition(b"?")
    for part, name, longest in ((path, "path", MAX_PATH_BYTES), (query, "query string", MAX_QUERY_BYTES)):
        if len(part) > longest:
            raise UnsupportedRequest(414, f"The {name} has {len(part):,} bytes, more than the {longest:,} allowed.")
