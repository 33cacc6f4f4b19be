"""The OpenAPI document of ``/v1/memories``."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import Body, Header
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, create_model

from service.memories.stored import KEY_VALUE, LENGTHS, key_inputs, projects
from service.memories.upload import DTYPES, MAX_TTL_S
from service.model.model import Model
from service.native.openapi import INT64, Tensor, problems

EXAMPLE = {"key": [[1, 0], [0, 1], [1, 1]], "value": [[1, 2], [3, 4], [5, 6]]}
APPENDED = {"key": [[2, 0]], "value": [[7, 8]], "at": 3}


class MemoryDescription(BaseModel):
    """Stored keys and values, without their numbers."""

    id: str
    block: str | None = Field(description="the block whose projections are stored; null: keys and values as sent")
    version: int | None = Field(description="version of that block")
    dtype: str
    key_shape: tuple[int, ...] = Field(description="[batch, kv_heads, n, d_k]; for a stack of layers [layers, ...]")
    value_shape: tuple[int, ...]
    lengths: tuple[int, ...] = Field(description="number of keys in each row of the batch")
    bytes: int = Field(description="size of its files, which have space for appended keys", json_schema_extra=INT64)
    content: str = Field(description="SHA-256 of the keys and values as first stored, for If-None-Match")
    created: datetime
    expires: datetime | None


class DamagedMemory(BaseModel):
    """A memory whose files were changed by others."""

    id: str
    reason: str


class MemoryList(BaseModel):
    """The memories that an API key may use; an admin key sees those of all."""

    memories: list[MemoryDescription]
    damaged: list[DamagedMemory] = Field(description="shown to admin keys, or to all if there are no API keys")
    limit_bytes: int = Field(description="upper limit on all memories of this machine", json_schema_extra=INT64)


def routes(blocks: dict[str, Model]) -> list[APIRoute]:
    """The documented routes. The projections of ``blocks`` can be stored."""
    names = {name for model in blocks.values() if projects(model) for name in key_inputs(model)}
    tensors: dict[str, Any] = {
        name: (Tensor | None, Field(None, description="[batch, kv_heads, n, d]; leading axes may be omitted"))
        for name in dict.fromkeys((*KEY_VALUE, *sorted(names)))
    }
    tensors[LENGTHS] = (list[int] | None, Field(None, description="[batch]: number of keys to store for each row"))
    base = create_model("MemoryTensors", __config__=ConfigDict(extra="forbid"), **tensors)
    stored = create_model(
        "NewMemory",
        __base__=base,
        block=(str | None, Field(None, description="store this block's projections of its inputs")),
        dtype=(str | None, Field(None, description=f"{' or '.join(DTYPES)}; default {DTYPES[0]}")),
        ttl_seconds=(float | None, Field(None, gt=0, le=MAX_TTL_S, description="seconds until it is deleted")),
    )
    appended = create_model(
        "NewKeys",
        __base__=base,
        at=(int | None, Field(None, ge=0, description="append only if the memory has this many keys")),
    )

    def create(
        body: Any,
        if_none_match: Annotated[str | None, Header(description="the content of a memory to reuse")] = None,
    ) -> None: ...

    create.__annotations__["body"] = Annotated[stored, Body()]

    def append(memory: str, body: Any) -> None: ...

    append.__annotations__["body"] = Annotated[appended, Body()]

    def list_memories() -> None: ...

    def one(memory: str) -> None: ...

    bad = (400, 413, 415, 422, 500, 503, 504, 507)
    described = {"model": MemoryDescription}
    created = {201: described, 200: described, **problems(404, *bad)}
    return [
        _route("", create, "POST", "Store keys and values", created, EXAMPLE),
        _route("", list_memories, "GET", "List the memories of this API key", {200: {"model": MemoryList}}),
        _route("/{memory}", one, "GET", "Describe a memory", {200: described, **problems(404, 410)}),
        _route("/{memory}", one, "DELETE", "Delete a memory", {204: {"description": "Deleted"}, **problems(404)}),
        _route(
            "/{memory}/append", append, "POST", "Append keys and values, all or none",
            {200: described, **problems(404, 409, 410, *bad)}, APPENDED,
        ),
    ]  # fmt: skip


def _route(
    path: str, function: Any, method: str, summary: str, responses: dict[int | str, dict[str, Any]], example: Any = None
) -> APIRoute:
    status = int(next(iter(responses)))
    name = summary.lower().replace(",", "").replace(" ", "_")
    return APIRoute(
        f"/v1/memories{path}",
        function,
        methods=[method],
        tags=["memories"],
        summary=summary,
        operation_id=name,
        status_code=status,
        responses=responses,
        openapi_extra={"requestBody": {"content": {"application/json": {"example": example}}}} if example else None,
    )
