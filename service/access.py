"""Who may ask what: API keys from files, which are read again when they change.

Inference and all that only reads need a key of ``api_keys_file``; what changes the server (load, unload, logging) needs
one of ``admin_keys_file``, which opens all else, too. Health is open to everyone. Without a file no key is asked for.
The files are looked at once a second for all requests, so that a request pays for no look.
"""

import hashlib
import hmac
import logging
import re
from collections.abc import Mapping
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import Forbidden, HeedError, Unauthorized
from service.settings import Settings

log = logging.getLogger("heed")

OPEN = re.compile(r"/v2/health/(live|ready)/?")
READING = ("GET", "HEAD", "OPTIONS")
PLAIN = re.compile(r"/v1/attention/[^/]+|/v2/models/[^/]+(/versions/[^/]+)?/infer/?|/v2/repository(/[^/]+)?/index/?")


class Keys:
    """The keys in a file, one a line; blank lines and those that begin with # are none. Only their hashes are kept.

    A file that is put in its place counts from the next look on. One that cannot be read any more leaves the keys as
    they were; an empty one leaves none.

    Raises:
        OSError: it cannot be read at the start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: object = None
        self._hashes: list[bytes] = []
        self._read()

    def __contains__(self, key: bytes) -> bool:
        """Takes as long for a key that is nearly right as for any other."""
        wanted = _hash(key)
        return sum(hmac.compare_digest(wanted, known) for known in self._hashes) > 0

    def look(self) -> bool:
        """Whether the file was read anew, as it is another than before."""
        try:
            return self._read()
        except OSError as error:
            if self._seen is not None:
                log.error("the keys in %s stay as they were: %s", self._path, error.strerror)
            self._seen = None
            return False

    def _read(self) -> bool:
        now = self._path.stat()
        seen = now.st_mtime_ns, now.st_size, now.st_ino
        if seen == self._seen:
            return False
        lines = [line.strip() for line in self._path.read_bytes().splitlines()]
        self._hashes = [_hash(line) for line in lines if line and not line.startswith(b"#")]
        self._seen = seen
        log.info("%d keys in %s", len(self._hashes), self._path)
        return True


class Access:
    """ASGI middleware: a request without the key that it needs goes no further."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._admin = Keys(settings.admin_keys_file) if settings.admin_keys_file else None
        self._api = Keys(settings.api_keys_file) if settings.api_keys_file else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refused = self.refusal(scope["state"]["headers"], scope["path"], scope["method"])
            if refused:
                raise refused
        await self._app(scope, receive, send)

    def look(self) -> bool:
        """Look at the files; whether keys were read anew, so that what was allowed before may not be now."""
        changed = [keys.look() for keys in (self._admin, self._api) if keys]
        return any(changed)

    def refusal(self, headers: Mapping[bytes, bytes], path: str, method: str) -> HeedError | None:
        """Why a request with these headers, by lower-case name, may not go on; None if it may."""
        administers = self._admin is not None and method not in READING and not PLAIN.fullmatch(path)
        if (self._api is None and not administers) or OPEN.fullmatch(path):
            return None
        key = _key(headers)
        if key is None:
            return Unauthorized("an API key is needed, as Authorization: Bearer <key> or as X-API-Key")
        is_admin = self._admin is not None and key in self._admin
        if is_admin or (not administers and self._api is not None and key in self._api):
            return None
        if self._api is not None and key in self._api:
            return Forbidden("this API key does not open the administration of this server")
        return Unauthorized("this API key is not known here")


def _key(headers: Mapping[bytes, bytes]) -> bytes | None:
    scheme, _, key = headers.get(b"authorization", b"").strip().partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key")


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
