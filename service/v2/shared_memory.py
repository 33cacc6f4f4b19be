"""The shared memory extensions are not offered: nothing is registered, and nothing can be."""

from fastapi import APIRouter, Response

from service.errors import Unsupported

router = APIRouter(prefix="/v2", include_in_schema=False)

KINDS = ("systemsharedmemory", "cudasharedmemory")


async def status() -> list[str]:
    return []


async def register() -> Response:
    raise Unsupported("shared memory is not offered here; send tensors in the body, as binary data")


async def unregister() -> Response:
    return Response()


for kind in KINDS:
    for region in ("", "/region/{region}"):
        router.add_api_route(f"/{kind}{region}/status", status, methods=["GET"])
        router.add_api_route(f"/{kind}{region}/register", register, methods=["POST"])
        router.add_api_route(f"/{kind}{region}/unregister", unregister, methods=["POST"])
