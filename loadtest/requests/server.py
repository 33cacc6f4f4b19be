"""Requests to a server apart from the load: model metadata, one request of each kind, metrics."""

import ssl
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpx
import orjson
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from heed_options import ssl_context
from loadtest.generator.load import Trust

TIMEOUT_S = 60
REASONS = {  # by a part of httpx's message
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not trusted; --cacert or SSL_CERT_FILE name a file with the "
    "certificate to trust, --insecure trusts any",
    "Connection refused": "connection refused; `heed serve` starts a server",
}


class ServerError(RuntimeError):
    """A server is unreachable or does not respond as required."""


class StatusError(ServerError):
    """A server responds with an unexpected ``status``."""

    def __init__(self, url: str, path: str, status: int, content: bytes) -> None:
        advice = "; --api-key or HEED_API_KEY gives a key" if status in (401, 403) else ""
        super().__init__(f"{url} answered {status} to {path}{advice}: {content[:300].decode(errors='replace')}")
        self.status = status


@dataclass(frozen=True)
class Server:
    """A server at ``url``; ``headers`` are sent with every request."""

    url: str
    headers: dict[str, str]
    trust: Trust = (None, False)

    @cached_property
    def address(self) -> httpx.URL:
        return httpx.URL(self.url)

    @property
    def tls(self) -> bool:
        return self.address.scheme == "https"

    @property
    def port(self) -> int:
        return self.address.port or (443 if self.tls else 80)

    @property
    def verify(self) -> ssl.SSLContext | bool:
        """The argument ``verify`` of httpx."""
        return self.tls and ssl_context(*self.trust)

    def call(self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        """The status and body of the response to a GET, or to a POST of ``body``.

        Raises:
            ServerError: the server does not respond.
        """
        method, all_headers = "GET" if body is None else "POST", {**(headers or {}), **self.headers}
        options: dict[str, Any] = {"timeout": TIMEOUT_S, "verify": self.verify, "trust_env": False}
        try:
            response = httpx.request(method, self.url + path, content=body, headers=all_headers, **options)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            reason = next((reason for part, reason in REASONS.items() if part in str(error)), error)
            raise ServerError(f"{self.url} does not answer: {reason}") from error
        return response.status_code, response.content

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

    def metrics(self) -> list[Sample]:
        """The samples at /metrics; none if the server has no metrics."""
        try:
            status, content = self.call("/metrics")
            families = text_string_to_metric_families(content.decode()) if status == 200 else ()
            return [sample for family in families for sample in family.samples]
        except (ServerError, ValueError):
            return []

    def wire(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        """The bytes of a request that posts ``body``."""
        host = self.address.netloc.decode()
        all_headers = {"Host": host, **headers, **self.headers, "Content-Length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
        return f"POST {httpx.URL(self.url + path).raw_path.decode()} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body
