"""``/v1/memories``: stores keys and values, lists and deletes them, and appends to them."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive

from service.base.budget import Reservation
from service.base.errors import Conflict
from service.codec.long_tensor import read_all
from service.http.body import Body, CountedReceive, Headers, read_json_length, require_json
from service.http.direct import RequestContext
from service.http.response import JSON, Fields, Pieces
from service.inference.disconnect import ClientWatch
from service.inference.stages import Stage, Stages, run_stages
from service.memories.memory import AppendInProgress, Description
from service.memories.openapi import DamagedMemory, MemoryDescription, MemoryList
from service.memories.source import Memories
from service.memories.state import State
from service.memories.stored import (
    KEY_VALUE,
    Reference,
    StoredInputs,
    StoredMemory,
    attends_to_itself,
    check_appended,
    check_model,
)
from service.memories.upload import Rows, Upload, content_hash, parse, plain_rows, projected_rows, projection_task
from service.model.model import Model
from service.native.endpoint import AttentionEndpoint

Tensors = dict[str, np.ndarray]
SHARED_FIELDS = {"block", "version", "dtype", "content", "created", "expires"}  # of both descriptions
RETRY_S = 0.005  # between two tries to append
ENTITY_TAG = re.compile(rb'"([0-9a-f]{64})"')


@dataclass(frozen=True, slots=True)
class Received:
    """A decoded body, whose ``client`` waits; its run has to begin until ``deadline``.

    ``check`` raises ClientDisconnect or TimedOut.
    """

    upload: Upload
    tensors: Tensors
    client: ClientWatch
    deadline: int | None
    check: Callable[[], None]


class MemoriesEndpoint:
    """The functions of ``/v1/memories``. ``blocks`` runs the blocks whose projections are stored."""

    def __init__(self, blocks: AttentionEndpoint, memories: Memories) -> None:
        self._blocks = blocks
        self._memories = memories
        self._store = memories.store
        self._thread = blocks.engine.offload

    async def create(self, request: Request) -> Response:
        """Store keys and values: 201, or 200 where ``If-None-Match`` names the content of a stored memory."""
        headers: Headers = request.state.headers
        owner = self._memories.owner(headers)
        if tags := {tag.decode() for tag in ENTITY_TAG.findall(headers.get(b"if-none-match", b""))}:
            existing = await self._thread(self._store.find, tags, owner)
            if existing is not None:
                return _answer(existing, 200)
        async with self._received(request) as received:
            rows = await self._rows(received)
            received.client.check()
            return _answer(await self._thread(self._create, received.upload, rows, owner), 201)

    async def append(self, request: Request) -> Response:
        """Append keys and values, all or none."""
        memory = await self._get(request)
        async with self._received(request, memory) as received:
            model = received.upload.model
            with memory.use():
                if model is not None and attends_to_itself(model):
                    await self._run_on(memory, received, model)
                else:
                    await self._append_in_turn(memory, received, await self._rows(received))
        return _answer(memory, 200)

    async def list(self, _: Request) -> ASGIApp:
        """The memories that the request's key may use. Their list counts for the memory budget until it is written."""
        return partial(self._blocks.respond_with, self._answer_list)

    async def get(self, request: Request) -> Response:
        """One memory, without its numbers."""
        return _answer(await self._get(request), 200)

    async def delete(self, request: Request) -> Response:
        """Delete a memory. Requests that use it go on."""
        owner = self._memories.seen_by(request.state.headers)
        await self._thread(self._store.delete, request.path_params["memory"], owner)
        return Response(status_code=204)

    async def _get(self, request: Request) -> StoredMemory:
        return await self._thread(self._memories.get, request.path_params["memory"], request.state.headers)

    @asynccontextmanager
    async def _received(self, request: Request, memory: StoredMemory | None = None) -> AsyncIterator[Received]:
        """The decoded body, whose memory is reserved until the context is left."""
        blocks, reservation = self._blocks, Reservation(self._blocks.engine.budget)
        context = RequestContext(request.state.headers, request.state.timing, reservation)
        client = ClientWatch(request.receive)
        try:
            json_length = read_json_length(context.headers)
            if json_length is None:
                require_json(context.headers)
            body = await blocks.receive_body(CountedReceive(request.receive, reservation), context, json_length)
            client.start()
            deadline, check = blocks.deadline(context), blocks.decoding_check(client, context)
            upload, tensors = await run_stages(self._decode(body, context, memory), blocks.engine.offload, check)
            yield Received(upload, tensors, client, deadline, check)
        finally:
            client.close()
            reservation.release()

    async def _rows(self, received: Received) -> Rows:
        model = received.upload.model
        if model is None:
            return plain_rows(received.tensors)
        return projected_rows(model, await self._run(received, model))

    async def _run(self, received: Received, model: Model, stored: StoredInputs | None = None) -> Tensors:
        blocks, client = self._blocks, received.client
        limit = blocks.settings.max_memory_bytes
        task = projection_task(model, received.tensors, limit, received.deadline, stored)
        client.check()
        return await client.cancel_on_disconnect(blocks.engine.run(task), task.cancel)

    async def _append_in_turn(self, memory: StoredMemory, received: Received, rows: Rows) -> None:
        """Append when no other append is in progress: a thread that waited for it would do nothing else meanwhile."""
        while True:
            received.check()
            try:
                await self._thread(self._append, memory, received.upload, rows)
                return
            except AppendInProgress:
                await asyncio.sleep(RETRY_S)

    async def _run_on(self, memory: StoredMemory, received: Received, model: Model) -> None:
        """Append the outputs of a block that attends to itself: its positions and deeper layers need stored keys."""
        while True:
            stored = self._store.inputs(memory, Reference(memory.id, True, received.upload.at, "at"), model)
            try:
                await self._run(received, model, stored)
                return
            except Conflict:  # another request appended meanwhile
                if received.upload.at is not None:
                    raise

    def _decode(
        self, body: tuple[bytes, Body], context: RequestContext, memory: StoredMemory | None
    ) -> Stages[tuple[Upload, Tensors]]:
        blocks, (content, attached) = self._blocks, body
        rest, parts = yield from blocks.cut(content)
        reading = partial(parse, rest, parts, attached, blocks.repository, memory)
        upload: Upload = yield Stage(blocks.reading, len(rest) + len(attached), reading)
        tensors = yield Stage(blocks.decoding, len(content), read_all(upload.tensors, context.reservation))
        return upload, tensors

    def _create(self, upload: Upload, rows: Rows, owner: str) -> StoredMemory:
        key, value = (np.ascontiguousarray(array, upload.dtype) for array in (rows.key, rows.value))
        now, model = time.time(), upload.model
        description = Description(
            owner=owner,
            block=model.name if model else None,
            version=model.version if model else None,
            dtype=str(upload.dtype),
            lead=key.shape[:-2],
            batch_axis=rows.batch_axis,
            d_k=key.shape[-1],
            d_v=value.shape[-1],
            content=content_hash(key, value, rows.counts, model),
            created=now,
            expires=now + upload.ttl_seconds if upload.ttl_seconds is not None else None,
        )
        return self._store.create(description, key, value, rows.counts)

    def _append(self, memory: StoredMemory, upload: Upload, rows: Rows) -> None:
        description = memory.description
        if upload.model is not None:
            check_model(description, upload.model, ())
        for name, array, stored in zip(KEY_VALUE, (rows.key, rows.value), description.shapes(0), strict=True):
            check_appended(name, array, stored)
        expected = None if upload.at is None else [upload.at] * description.rows
        self._store.append(memory, rows.key, rows.value, expected, rows.counts)

    async def _answer_list(self, _: Mapping[str, Any], __: Receive, context: RequestContext) -> tuple[Pieces, Fields]:
        listed = await self._thread(self._list, self._memories.seen_by(context.headers))
        context.reservation.add(len(listed))
        return [listed], JSON

    def _list(self, owner: str | None) -> bytes:
        memories, damaged = [], []
        for memory in self._store.all(owner):
            if isinstance(memory, tuple):
                damaged.append(DamagedMemory(id=memory[0], reason=memory[1].detail))
            else:  # as text, which takes a fifth of the memory of lengths
                memories.append(_describe(memory, memory.state()).model_dump_json())
        listed = MemoryList(memories=[], damaged=damaged, limit_bytes=self._store.limit)
        head, tail = listed.model_dump_json().split("[]", 1)
        return f"{head}[{','.join(memories)}]{tail}".encode()


def _answer(memory: StoredMemory, status: int) -> Response:
    headers = {"Location": f"/v1/memories/{memory.id}"} if status == 201 else {}
    state = memory.state()
    description = _describe(memory, state)
    if not state.sequence:
        headers["ETag"] = f'"{description.content}"'
    return Response(description.model_dump_json(), status, headers, "application/json")


def _describe(memory: StoredMemory, state: State) -> MemoryDescription:
    description = memory.description
    key_shape, value_shape = description.shapes(state.length)
    return MemoryDescription(
        **description.model_dump(include=SHARED_FIELDS),
        id=memory.id,
        key_shape=key_shape,
        value_shape=value_shape,
        lengths=state.lengths,
        bytes=description.nbytes(state.capacity),
    )
