"""Requests to a server apart from the load: model metadata, one request of each kind, metrics."""

import http.client
import ssl
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import SplitResult, urlsplit

import orjson

from loadtest.tls import Trust

TIMEOUT_S = 60


class ServerError(RuntimeError):
    """A server is unreachable or does not respond as required."""


class StatusError(ServerError):
    """A server responds with an unexpected ``status``."""

    def __init__(self, url: str, path: str, status: int, content: bytes) -> None:
        advice = "; --api-key or HEED_API_KEY gives a key" if status in (401, 403) else ""
        super().__init__(f"{url} answers {status} to {path}{advice}: {content[:300].decode(errors='replace')}")
        self.status = status


@dataclass(frozen=True)
class Server:
    """A server at ``url``; ``headers`` go with every request."""

    url: str
    headers: dict[str, str]
    trust: Trust = field(default_factory=Trust)

    def __post_init__(self) -> None:
        try:
            is_valid = self._parts.scheme in ("http", "https") and self._parts.hostname and self.port
        except ValueError:  # the port is not a number
            is_valid = False
        if not is_valid:
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
        """The request target: ``path`` below the path of the URL."""
        return self._parts.path.rstrip("/") + path

    def call(self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        """The status and body of a GET, or of a POST of ``body``.

        Raises:
            ServerError: the server does not respond.
        """
        connection = self._connection()
        try:
            method = "GET" if body is None else "POST"
            connection.request(method, self.target(path), body, {**(headers or {}), **self.headers})
            response = connection.getresponse()
            return response.status, response.read()
        except ssl.SSLCertVerificationError as error:
            raise ServerError(
                f"{self.url}: its certificate is not trusted: {error.verify_message}; "
                "--cacert or SSL_CERT_FILE name a file with the certificate to trust, --insecure trusts any"
            ) from error
        except ConnectionRefusedError as error:
            raise ServerError(
                f"{self.url} does not answer: connection refused; `heed serve` starts a server"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{self.url} does not answer: {error}") from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if not self.tls:
            return http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        return http.client.HTTPSConnection(self.host, self.port, timeout=TIMEOUT_S, context=self.trust.context())

    def document(self, path: str) -> dict[str, Any] | None:
        """The JSON object at ``path``; None if there is none.

        Raises:
            StatusError: the status is neither 200 nor 404.
        """
        status, content = self.call(path)
        if status not in (200, 404):
            raise StatusError(self.url, path, status, content)
        try:
            document = orjson.loads(content)
        except orjson.JSONDecodeError:
            return None
        return document if status == 200 and isinstance(document, dict) else None

    def wire(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        """The bytes of a request that posts ``body``."""
        all_headers = {"Host": self._parts.netloc, **headers, **self.headers, "Content-Length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
        return f"POST {self.target(path)} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body
