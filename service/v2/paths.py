"""The protocol's paths: a version is decimal digits, and a trailing slash changes nothing, without a redirect."""

from typing import Annotated

from fastapi import Path
from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

OF_MODEL = "/models/{model}"
OF_VERSION = "/models/{model}/versions/{version:digits}"

Name = Annotated[str, Path(description="a model's name", examples=["scaled_dot_product"])]
Number = Annotated[int, Path(description="its version", examples=[1], ge=0)]


class Digits(Convertor[int]):
    """As many as fit in 64 bits; anything else is no path of ours."""

    regex = "[0-9]{1,18}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("digits", Digits())


class Slash:
    """ASGI middleware: ``/v2/health/live/`` is answered as ``/v2/health/live``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/") and scope["path"].startswith("/v2/"):
            scope = {**scope, "path": scope["path"][:-1]}
        await self._app(scope, receive, send)
