"""Schemas of the responses of ``/v1/memories``."""

from datetime import datetime

from pydantic import BaseModel, Field


class MemoryDescription(BaseModel):
    """Stored keys and values, without their numbers."""

    id: str
    block: str | None = Field(description="the block whose projections are stored; null: keys and values as sent")
    version: int | None = Field(description="of that block")
    dtype: str
    key_shape: tuple[int, ...] = Field(description="[batch, kv_heads, n, d_k], of a stack of layers [layers, ...]")
    value_shape: tuple[int, ...]
    lengths: tuple[int, ...] = Field(description="keys of each row of the batch")
    bytes: int = Field(description="of its files, which have room for appended keys")
    content: str = Field(description="SHA-256 of what was stored first, for If-None-Match")
    created: datetime
    expires: datetime | None


class DamagedMemory(BaseModel):
    """A memory whose files were changed by others."""

    id: str
    reason: str


class MemoryList(BaseModel):
    """The memories that an API key may use; an admin key sees those of all."""

    memories: list[MemoryDescription]
    damaged: list[DamagedMemory] = Field(description="shown to admin keys, or where there are no keys")
    limit_bytes: int = Field(description="upper limit on all memories of this machine")
