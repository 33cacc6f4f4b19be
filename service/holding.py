"""What the bodies of all requests take together is bounded, as each by itself is: many that wait are much memory."""

from starlette.types import Message, Receive

from service.engine import Engine


class Holding:
    """``receive`` of one request, whose bytes count for as long as it is worked on."""

    def __init__(self, engine: Engine, receive: Receive) -> None:
        self._engine = engine
        self._receive = receive
        self._bytes = 0

    async def __call__(self) -> Message:
        """Raises Overloaded where it is too much; a body that is alone is not."""
        message = await self._receive()
        size = len(message.get("body", b""))
        if size:
            self._engine.hold(size, self._bytes)
            self._bytes += size
        return message

    def end(self) -> None:
        self._engine.held -= self._bytes
