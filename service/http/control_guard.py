"""Protects control of the server from web pages of other sites, where no admin key does.

A page may send any POST of a "simple" type (text/plain, a form) to any address that its reader's browser reaches, this
machine's own included. The browser tells where the page comes from (``Origin``, ``Sec-Fetch-Site``), and if the page's
host name was made to lead here (DNS rebinding), that name is still in ``Host``. Clients other than browsers send none
of this; they only need a media type that no page may send without permission.
"""

import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from service.base.errors import Forbidden, HeedError, UnsupportedMedia
from service.http.auth import INDEX, OPEN_TO_USERS, READING
from service.settings import Settings

SAME_SITE = (b"same-origin", b"none")  # none: the user entered the address
MEDIA_TYPES = (b"application/json", b"application/octet-stream")  # the second is tritonclient.http.aio's, for JSON
PORTS = {"http": 80, "https": 443}
WILDCARDS = ("0.0.0.0", "::")  # every address, and no name of a host


class ControlGuard:
    """ASGI middleware inside the envelope, around all routes but those that run models."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._origins = {origin.strip().lower() for origin in settings.cors_origins.split(",")} - {"", "*"}
        names = [settings.host, *settings.control_hosts.split(",")]
        self._hosts = {name.strip().lower() for name in names} - {"", *WILDCARDS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in READING:
            path = scope["path"]
            is_open = INDEX.fullmatch(path) or OPEN_TO_USERS.fullmatch(
                path
            )  # to every client: its own memories, for example
            if not is_open and (error := self.denied(scope["state"]["headers"])):
                raise error
        await self._app(scope, receive, send)

    def denied(self, headers: Mapping[bytes, bytes]) -> HeedError | None:
        """Why a request with these headers, by lower-case name, may not change the server; None if it may."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        trusted = origin in self._origins
        if not self._is_own(host):
            return Forbidden(
                f"the host name {host!r} may not be used to control this server: add it to HEED_CONTROL_HOSTS, use an "
                "IP address, or protect control with HEED_ADMIN_KEYS_FILE"
            )
        if origin and not trusted and not _is_same_site(origin, host):
            return Forbidden(
                f"pages of {origin!r} may not control this server: add the origin to HEED_CORS_ORIGINS, or protect "
                "control with HEED_ADMIN_KEYS_FILE"
            )
        if not trusted and headers.get(b"sec-fetch-site", SAME_SITE[0]).lower() not in SAME_SITE:
            return Forbidden("pages of other sites may not control this server (Sec-Fetch-Site)")
        media = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
        has_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        if has_body and media not in MEDIA_TYPES:
            return UnsupportedMedia(f"expected Content-Type application/json, got {media.decode('latin-1')}")
        return None

    def _is_own(self, host: str) -> bool:
        """Whether no page of another site can be under this name, as no public name server can make it lead here."""
        name = _split(f"//{host}")[0]
        if name in self._hosts or "." not in name or name.endswith(".localhost"):
            return True  # a name without a dot is no public one
        with suppress(ValueError):
            ipaddress.ip_address(name)
            return True
        return False


def _is_same_site(origin: str, host: str) -> bool:
    """Whether a page of ``origin`` came from ``host``. The scheme is not compared: a proxy may have changed it."""
    scheme, _, rest = origin.partition("://")
    default = PORTS.get(scheme)
    name, port = _split(f"//{rest}")
    own, own_port = _split(f"//{host}")
    return default is not None and (name, port or default) == (own, own_port or default)


def _split(url: str) -> tuple[str, int | None]:
    try:
        parts = urlsplit(url)
        return (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return "an.invalid.name", None
