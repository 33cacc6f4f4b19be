"""Code that ``Client`` and ``AsyncClient`` share: their arguments as httpx's and as fields of requests, and methods."""

import os
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import httpx

from heed_client.arrays import TensorLike
from heed_options import DEFAULT_URL, server_url, ssl_context

P = ParamSpec("P")
T = TypeVar("T")


def awaited(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The ``method`` of a sync class for its async counterpart, whose ``_execute`` returns a coroutine."""
    return cast(Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], method)


def _version() -> str:
    for distribution in ("heed-client", "heed-attention"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "unknown"


VERSION = _version()


def http_options(
    url: str | None,
    api_key: str | None,
    cacert: str | Path | None,
    verify: bool,
    timeout: float | None,
    transport: Any,
) -> dict[str, Any]:
    """httpx's arguments; the URL and the key default to those of the environment.

    Raises:
        ValueError: an argument, or the URL or key of the environment, is wrong; the message begins with its name.
    """
    if transport is not None and (cacert is not None or not verify):
        raise ValueError("transport: cannot be combined with cacert or verify")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0):
        raise ValueError(f"timeout: expected seconds, a number above 0, or None for no limit, got {timeout!r}")
    name = "url" if url is not None else "HEED_URL"
    if api_key is None:
        api_key = os.environ.get("HEED_API_KEY") or None
    if api_key is not None and not (isinstance(api_key, str) and api_key.isascii() and api_key.isprintable()):
        raise ValueError("api_key: expected printable ASCII")
    try:
        base_url = server_url(url if url is not None else os.environ.get("HEED_URL") or DEFAULT_URL)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    headers = {"User-Agent": f"heed-client/{VERSION}"}
    options = {"base_url": base_url, "timeout": timeout, "transport": transport}
    if cacert is not None or not verify:
        try:
            options["verify"] = ssl_context(cacert, not verify)
        except ValueError as error:
            raise ValueError(f"cacert: {error}") from None
    elif base_url.startswith("http:"):
        options["verify"] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # reading this machine's certificates takes 35 ms
    return options | {"headers": headers | ({} if api_key is None else {"Authorization": f"Bearer {api_key}"})}


def named_inputs(
    query: TensorLike, key: TensorLike, value: TensorLike, inputs: Mapping[str, TensorLike]
) -> dict[str, TensorLike]:
    """The inputs by name; those that are None are not sent."""
    return {"query": query, "key": key, "value": value, **inputs}


def text_fields(
    text: str | Sequence[str] | None,
    text_pair: str | Sequence[str] | None,
    text_target: str | Sequence[str] | None,
    truncation: bool | None,
    add_special_tokens: bool,
) -> dict[str, Any]:
    """The fields of a request to tokenize."""
    fields = {"text": text, "text_pair": text_pair, "text_target": text_target, "truncation": truncation}
    lists = {
        name: value if isinstance(value, str | bool) else [*value]
        for name, value in fields.items()
        if value is not None
    }
    return lists | ({} if add_special_tokens else {"add_special_tokens": False})


def not_ready(response: httpx.Response) -> str:
    """Why a server that answered is not ready."""
    return f"/v2/health/ready returned {response.status_code}: it is loading its models or shutting down"
