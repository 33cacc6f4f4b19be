"""Bodies that come in chunks, and their two parts."""

import pytest

from service.http import body
from service.http.body import ALIGNMENT, BodyBuffer, ChunkBuffer, split


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("sizes", [[], [0], [5], [3, 4], [8], [8, 8], [3, 4, 5, 6, 7], [20, 1]])
def test_chunks_are_joined_at_the_end_or_as_they_come(monkeypatch, sizes, is_known):
    monkeypatch.setattr(body, "MAX_JOINED_BYTES", 8)
    chunks = [bytes([65 + index]) * size for index, size in enumerate(sizes)]
    buffer = ChunkBuffer(sum(sizes) if is_known else None)
    for chunk in chunks:
        buffer.add(chunk)
    assert buffer.length == sum(sizes)
    assert buffer.whole() == b"".join(chunks)


def test_one_chunk_is_not_copied():
    buffer, chunk = ChunkBuffer(), bytes(100)
    buffer.add(chunk)
    assert buffer.whole() is chunk


@pytest.mark.parametrize("first", [0, 1, 50, 99, 100])
def test_two_parts_keep_less_than_twice_the_body(first):
    content = bytes(range(100))
    buffer = BodyBuffer(len(content), first)
    buffer.add(content)
    for parts in (buffer.parts(), split(content, first)):
        assert parts == (content[:first], content[first:])
        kept = sum(len(part.obj) if isinstance(part, memoryview) else len(part) for part in parts)
        assert kept < 2 * len(content) + ALIGNMENT
        assert not isinstance(parts[1], memoryview) or first < 50
