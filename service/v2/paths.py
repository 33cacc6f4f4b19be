"""The protocol's paths: a version is decimal digits, and a trailing slash is ignored, without a redirect."""

from typing import Annotated

from fastapi import Path
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

OF_MODEL = "/models/{model}"
OF_VERSION = "/models/{model}/versions/{version:digits}"

Name = Annotated[str, Path(description="a model's name", examples=["scaled_dot_product"])]
Number = Annotated[int, Path(description="its version", examples=[1], ge=0)]


class Digits(IntegerConvertor):
    """A version: at most as many digits as fit in 64 bits. Other paths match no route."""

    regex = "[0-9]{1,18}"


register_url_convertor("digits", Digits())


class StripTrailingSlash:
    """ASGI middleware: ``/v2/health/live/`` is answered as ``/v2/health/live``, and HEAD as GET without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and len(scope["path"]) > 1 and scope["path"].endswith("/"):
            scope = {**scope, "path": scope["path"][:-1]}
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)
