"""Authentication by API keys from files, which are read again when they change.

Inference and reading need a key of ``api_keys_file``. Changing the server (load, unload, logging) needs a key of
``admin_keys_file``, and such a key is enough for all else, too. The index of the repository, which tells why a model
failed to load, needs a key where there are any. Health is open to everyone, and so are the files of the viewer and of
/docs. Without a file no key is needed. The files are checked once a second, so that a request does not pay for it.
"""

import hashlib
import hmac
import logging
import re
from collections.abc import Mapping
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from service.base.errors import Forbidden, HeedError, Unauthorized
from service.settings import Settings

log = logging.getLogger("heed")

OPEN = re.compile(r"/v2/health/(live|ready)/?")
PAGES = re.compile(r"/(viewer/.*|docs/?|static-offline-docs/.*)?")  # they ask for a key themselves
READING = ("GET", "HEAD", "OPTIONS")
OPEN_TO_USERS = re.compile(
    r"/v1/(attention|text|tokenize|generate|sweep|lens)/[^/]+/?|/v1/memories(/[^/]+(/append)?)?/?"
    r"|/v2/models/[^/]+(/versions/[^/]+)?/(infer|generate|generate_stream)/?"
)
INDEX = re.compile(r"/v2/repository(/[^/]+)?/index/?")  # any key is enough


class KeyFile:
    """The keys in a file, one a line; blank lines and those that begin with # are ignored. Only hashes are kept.

    If the file can no longer be read, the keys stay as they were; an empty file has no keys.

    Raises:
        OSError: it cannot be read at the start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: object = None
        self._hashes: dict[int, bytes] = {}  # by the number of the line, from 1
        self._read()

    def __contains__(self, key: bytes) -> bool:
        """Takes equally long for all keys, so that its time reveals nothing."""
        digest = _hash(key)
        return sum(hmac.compare_digest(digest, known) for known in self._hashes.values()) > 0

    def name(self, key: bytes) -> str | None:
        """The place of a key, which names it without revealing it: the file and the line; None if it is not there."""
        digest = _hash(key)
        lines = [line for line, known in self._hashes.items() if hmac.compare_digest(digest, known)]
        return f"{self._path.name}:{lines[0]}" if lines else None

    def reload_if_changed(self) -> bool:
        """Whether the file has changed and was read again."""
        try:
            return self._read()
        except OSError as error:
            if self._seen is not None:
                log.error("cannot read the API keys in %s; the old ones stay valid: %s", self._path, error.strerror)
            self._seen = None
            return False

    def _read(self) -> bool:
        now = self._path.stat()
        seen = now.st_mtime_ns, now.st_size, now.st_ino
        if seen == self._seen:
            return False
        lines = [line.strip() for line in self._path.read_bytes().splitlines()]
        self._hashes = {i: _hash(line) for i, line in enumerate(lines, 1) if line and not line.startswith(b"#")}
        self._seen = seen
        log.info("API keys in %s: %d", self._path, len(self._hashes))
        return True


class ApiKeyAuth:
    """ASGI middleware: a request without the key that it needs is refused."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._admin = KeyFile(settings.admin_keys_file) if settings.admin_keys_file else None
        self._api = KeyFile(settings.api_keys_file) if settings.api_keys_file else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            error = self.denied(scope["state"]["headers"], scope["path"], scope["method"])
            if error:
                raise error
        await self._app(scope, receive, send)

    def reload_if_changed(self) -> bool:
        """Whether a file has changed and was read again."""
        changed = [keys.reload_if_changed() for keys in (self._admin, self._api) if keys]
        return any(changed)

    def denied(self, headers: Mapping[bytes, bytes], path: str, method: str) -> HeedError | None:
        """Why a request with these headers, by lower-case name, may not go on; None if it may."""
        administers = self._admin is not None and method not in READING and not OPEN_TO_USERS.fullmatch(path)
        if INDEX.fullmatch(path) and self._api is not None:
            administers = False
        if (self._api is None and not administers) or OPEN.fullmatch(path):
            return None
        if method in READING and PAGES.fullmatch(path):
            return None
        key = _key(headers)
        if key is None:
            return Unauthorized("missing API key: send it as Authorization: Bearer <key> or X-API-Key: <key>")
        if self._is_admin(key) or (not administers and self._api is not None and key in self._api):
            return None
        if self._api is not None and key in self._api:
            return Forbidden("this API key has no admin rights")
        return Unauthorized("unknown API key")

    def owner(self, headers: Mapping[bytes, bytes]) -> str:
        """Who sends a request with these headers, which is allowed: a hash of its key."""
        key = _key(headers)
        return "" if key is None or not (self._api or self._is_admin(key)) else _hash(key).hex()

    def key_name(self, headers: Mapping[bytes, bytes]) -> str | None:
        """The name of the key of a request with these headers, for logs; None if it has no known one."""
        key = _key(headers)
        names = [keys.name(key) for keys in (self._admin, self._api) if keys and key is not None]
        return next(filter(None, names), None)

    def is_admin(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a request with these headers has an admin key."""
        key = _key(headers)
        return key is not None and self._is_admin(key)

    def _is_admin(self, key: bytes) -> bool:
        return self._admin is not None and key in self._admin


def _key(headers: Mapping[bytes, bytes]) -> bytes | None:
    scheme, _, key = headers.get(b"authorization", b"").strip().partition(b" ")
    bearer = key.strip() if scheme.lower() == b"bearer" else b""
    return bearer or headers.get(b"x-api-key")


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
