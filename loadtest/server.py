"""What is asked of a server before and beside the load: what it serves, one answer of each kind, its metrics."""

import http.client
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import SplitResult, urlsplit

import orjson

PATIENCE = 60  # seconds


class ServerError(RuntimeError):
    """A server cannot be reached, or does not answer as needed."""


@dataclass(frozen=True)
class Server:
    """A server at ``url``; ``headers`` go with every request."""

    url: str
    headers: dict[str, str]

    def __post_init__(self) -> None:
        try:
            known = self._parts.scheme in ("http", "https") and self._parts.hostname and self.port
        except ValueError:  # a port that is none
            known = False
        if not known:
            raise ServerError(f"expected http://HOST:PORT, got {self.url!r}")

    @cached_property
    def _parts(self) -> SplitResult:
        return urlsplit(self.url)

    @property
    def tls(self) -> bool:
        return self._parts.scheme == "https"

    @property
    def host(self) -> str:
        return str(self._parts.hostname)

    @property
    def port(self) -> int:
        return self._parts.port or (443 if self.tls else 80)

    def target(self, path: str) -> str:
        """``path`` under the URL's own."""
        return self._parts.path.rstrip("/") + path

    def call(self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        """The status and body of a GET, or of a POST of ``body``.

        Raises:
            ServerError: no answer.
        """
        connect = http.client.HTTPSConnection if self.tls else http.client.HTTPConnection
        connection = connect(self.host, self.port, timeout=PATIENCE)
        try:
            method = "GET" if body is None else "POST"
            connection.request(method, self.target(path), body, {**(headers or {}), **self.headers})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{self.url} does not answer: {error}") from error
        finally:
            connection.close()

    def document(self, path: str) -> dict[str, Any] | None:
        """The JSON object at ``path``; None where there is none."""
        status, content = self.call(path)
        try:
            found = orjson.loads(content)
        except orjson.JSONDecodeError:
            return None
        return found if status == 200 and isinstance(found, dict) else None

    def wire(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        """The whole request that posts ``body``, as it goes over the wire."""
        said = {"Host": self._parts.netloc, **headers, **self.headers, "Content-Length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in said.items())
        return f"POST {self.target(path)} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body
