"""One GET request to a server, by the standard library alone: ``heed probe`` has to import little."""

import ssl
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from heed_options import ssl_context


class NoAnswer(Exception):
    """The server did not answer; the message has the reason, and a remedy if one is known."""


def get(
    url: str, path: str, timeout_s: float, api_key: str | None, cacert: str | None, insecure: bool
) -> tuple[int, bytes]:
    """The status and the body of ``path`` below ``url``.

    Raises:
        NoAnswer: there is no server, it is not of HTTP, or its certificate is not trusted.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        if parts.scheme == "http":
            opened = HTTPConnection(host, parts.port, timeout=timeout_s)
        else:
            opened = HTTPSConnection(host, parts.port, timeout=timeout_s, context=ssl_context(cacert, insecure))
        with closing(opened) as connection:
            connection.request("GET", parts.path + path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
    except ssl.SSLCertVerificationError as error:
        raise NoAnswer(
            f"{url}: its certificate is not trusted: {error.verify_message}; --cacert names a file with the "
            "certificate to trust, --insecure trusts any"
        ) from None
    except ssl.SSLError:
        raise NoAnswer(f"{url}: the server does not use HTTPS; try http://") from None
    except ConnectionRefusedError:
        raise NoAnswer(f"{url}: connection refused; `heed serve` starts a server") from None
    except TimeoutError:
        raise NoAnswer(f"{url}: no answer in {timeout_s:g} s") from None
    except (OSError, HTTPException) as error:
        raise NoAnswer(f"{url}: {getattr(error, 'strerror', None) or str(error) or type(error).__name__}") from None
