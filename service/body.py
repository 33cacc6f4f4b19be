"""A request's body: its media type, its encoding and its length are refused before it is read."""

from starlette.requests import Request

from service.errors import TooLarge, UnsupportedEncoding, UnsupportedMedia


async def read(request: Request, longest: int) -> bytes:
    """The body of a JSON request, of at most ``longest`` bytes.

    Raises:
        UnsupportedMedia: it is not declared as JSON, or it is compressed.
        TooLarge: it is longer, by its declared length or as it comes.
    """
    media = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media != "application/json":
        raise UnsupportedMedia(f"expected Content-Type application/json, got {media}")
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise UnsupportedEncoding(f"expected no Content-Encoding, got {encoding}")
    return await receive(request, longest)


async def receive(request: Request, longest: int, align: int = 0) -> bytes:
    """The body as it came, of at most ``longest`` bytes, behind ``align`` zero bytes.

    Raises:
        TooLarge: it is longer, by its declared length or as it comes.
    """
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > longest:
        raise TooLarge(
            f"the body has {int(declared):,} bytes; the limit (max_body_bytes) is {longest:,} bytes: "
            "it exceeds the maximum allowed"
        )
    chunks = [bytes(align)] if align else []
    length = 0
    async for chunk in request.stream():
        length += len(chunk)
        if length > longest:
            raise TooLarge(f"the body exceeds the maximum allowed (max_body_bytes), {longest:,} bytes")
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
