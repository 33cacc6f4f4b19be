"""How to repeat a result: the command, the machine of the load, and the versions of each server."""

import os
import shlex
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from loadtest.requests.server import Server, ServerError

SECRET_HEADERS = ("auth", "key", "token", "cookie", "secret")  # parts of their names
HIDDEN = "..."
METADATA = {"name": "name", "version": "version", "provider": "provider", "provider_reason": "reason"}  # of GET /v2
RUNTIMES = ("onnxruntime", "python")  # labels of heed_build_info


def command(arguments: Sequence[str], url: str, headers: Sequence[tuple[str, str]]) -> str:
    """The command line with ``url``, empty if an argument has it, without API keys and values of secret headers."""
    secrets = [value for name, value in headers if any(part in name.lower() for part in SECRET_HEADERS)]
    secrets += [value.removeprefix("Bearer ") for value in secrets]
    shown = [_hidden(argument, secrets) for argument in arguments]
    return shlex.join(["heed", "loadtest", *([url] if url else []), *shown])


def _hidden(argument: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        if secret and argument.endswith(secret):
            return argument.removesuffix(secret) + HIDDEN
    return argument


def machine() -> dict[str, Any]:
    """The version of the load generator, and the processors that it may use."""
    try:
        own = version("heed-attention")
    except PackageNotFoundError:
        own = None
    return {"version": own, "cpus": len(os.sched_getaffinity(0))}


def about(server: Server) -> dict[str, Any]:
    """Version, provider and its reason, versions of the runtime, and workers, as far as the server reports them."""
    try:
        metadata = server.document("/v2") or {}
    except ServerError:
        metadata = {}
    found = {name: metadata[key] for key, name in METADATA.items() if metadata.get(key)}
    for sample in server.metrics():
        if sample.name == "heed_workers":
            found["workers"] = int(sample.value)
        elif sample.name == "heed_build_info":
            found |= {name: sample.labels[name] for name in RUNTIMES if sample.labels.get(name)}
    return found
