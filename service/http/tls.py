"""TLS within limits: uvloop reads and writes all that is there in one turn of the event loop, however long that takes.

It encrypts an answer of 100 MB at once, half a second in which no other is answered, and the buffer for it keeps that
size while the connection is open. OpenSSL processes any number of a client's handshake messages after the handshake:
new keys are some twenty microseconds of work for 27 bytes.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import proxy

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

CONNECTION_BYTES = 1 << 16  # of memory that a connection takes at least
BUFFERS = 2  # that keep the size of the most bytes that came at once, as long as a connection is open
PIECE_BYTES = 1 << 17  # that are encrypted in one turn of the event loop
HEADER_BYTES = 5  # of a record: its type, the version, and its length in two bytes
RECORD_TYPES = range(20, 25)
MAX_RECORD_BYTES = (1 << 14) + (1 << 11)  # behind the header, in TLS 1.2
RECORDS_PER_TURN = 256  # read from one connection, before others have their turn
MAX_EMPTY_RECORDS = 64  # without data of the application, after the handshake
DATA_PER_EMPTY_RECORD = 1 << 20  # bytes, for which one more is allowed


class TooManyRecords(ssl.SSLError):
    """A client sends hardly anything but messages of TLS."""


class LimitedSession(ssl.SSLObject):
    """OpenSSL's side of a connection, which gets one record at a time, and not many without data.

    ``attach`` has to be called first. ``on_turn_end`` is called after ``RECORDS_PER_TURN`` records: it has to call
    ``begin_turn`` and have the transport read on, when other connections have had their turn.
    """

    on_turn_end: Callable[[], object] = staticmethod(lambda: None)

    def attach(self, incoming: ssl.MemoryBIO, fed: ssl.MemoryBIO) -> None:
        """Take records from ``incoming``; ``fed`` is where OpenSSL reads."""
        self._incoming, self._fed = incoming, fed
        self._header = b""  # of a record that has not come whole
        self._allowance = MAX_EMPTY_RECORDS * DATA_PER_EMPTY_RECORD
        self._records = 0  # in this turn

    def begin_turn(self) -> None:
        """Others have had their turn."""
        self._records = 0

    def do_handshake(self) -> None:
        """As SSLObject; what comes behind the handshake is left."""
        self._with_records(super().do_handshake)

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        """As SSLObject, of one record.

        Raises:
            SSLWantReadError: there is no more, or its turn has ended.
            TooManyRecords: too many had no data.
        """
        if self._records == RECORDS_PER_TURN:
            raise ssl.SSLWantReadError
        self._records += 1
        if self._records == RECORDS_PER_TURN:
            self.on_turn_end()
        result = self._with_records(lambda: super(LimitedSession, self).read(len, buffer), self._count_empty)
        size = result.__len__() if buffer is None else result
        self._allowance = min(self._allowance + size, MAX_EMPTY_RECORDS * DATA_PER_EMPTY_RECORD)
        return result

    def unwrap(self) -> None:
        """As SSLObject."""
        self._with_records(super().unwrap, self._count_empty)

    def _count_empty(self) -> None:
        self._allowance -= DATA_PER_EMPTY_RECORD
        if self._allowance < 0:
            raise TooManyRecords("too many TLS records without data")

    def _with_records(self, function: Callable[[], Any], on_empty: Callable[[], None] = lambda: None) -> Any:
        """The result of ``function``, given more records as long as it wants some and there are whole ones."""
        is_fed = self.pending() > 0 or self._feed()
        while True:
            try:
                return function()
            except ssl.SSLWantReadError:
                if is_fed:
                    on_empty()
                is_fed = self._feed()
                if not is_fed:
                    raise

    def _feed(self) -> bool:
        """Give OpenSSL the next record, if it has come whole. What is none is given as it comes: OpenSSL refuses it."""
        if len(self._header) < HEADER_BYTES:
            self._header += self._incoming.read(HEADER_BYTES - len(self._header))
        if not self._header:
            return False
        length = int.from_bytes(self._header[3:5], "big")
        if self._header[0] not in RECORD_TYPES or length > MAX_RECORD_BYTES:
            length = self._incoming.pending
        elif len(self._header) < HEADER_BYTES or self._incoming.pending < length:
            return False
        self._fed.write(self._header + self._incoming.read(length) if length else self._header)
        self._header = b""
        return True


class LimitedContext(ssl.SSLContext):
    """Its server sides of connections are ``LimitedSession``."""

    sslobject_class = LimitedSession

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **kwargs: Any) -> LimitedSession:
        """As SSLContext."""
        fed = ssl.MemoryBIO()
        session = super().wrap_bio(fed, outgoing, *args, **kwargs)
        assert isinstance(session, LimitedSession)
        session.attach(incoming, fed)
        return session


class PacedTransport(asyncio.Transport):
    """A TLS transport that gets large data in pieces, one in each turn of the event loop, while it takes more.

    The protocol has to call ``pause`` and ``resume`` when the transport calls its ``pause_writing`` and
    ``resume_writing``. While data waits here, its flow of writing is paused.
    """

    def __init__(self, transport: asyncio.Transport, protocol: HttpToolsProtocol) -> None:
        super().__init__()
        self._transport = transport
        self._protocol = proxy(protocol)  # which refers to this transport, and has to be freed when both are closed
        self._loop = protocol.loop
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._is_full = False  # the transport waits for the client
        self._is_scheduled = False
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write now what is short, and nothing waits before it; else let it wait for its turn."""
        if not self._waiting and len(data) <= PIECE_BYTES:
            self._transport.write(data)
        elif not self.is_closing():
            self._waiting.append(memoryview(data).cast("B"))
            self._waiting_bytes += len(data)
            self._protocol.flow.pause_writing()
            self._schedule()

    def pause(self) -> None:
        """The transport takes no more."""
        self._is_full = True

    def resume(self) -> bool:
        """The transport takes more; whether nothing waits, so that the protocol may write, too."""
        self._is_full = False
        self._schedule()
        return not self._waiting

    def close(self) -> None:
        """Close it after what waits is written."""
        self._is_closing = True
        if not self._waiting:
            self._transport.close()

    def abort(self) -> None:
        """Close it now."""
        self.drop()
        self._transport.abort()

    def drop(self) -> None:
        """Drop what waits: the connection is lost."""
        self._waiting.clear()
        self._waiting_bytes = 0

    def is_closing(self) -> bool:
        """Whether it is closed, or will be once all is written."""
        return self._is_closing or self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        """Bytes that wait here or in the transport."""
        return self._waiting_bytes + self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """That of the transport."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Pause the transport's."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume the transport's."""
        self._transport.resume_reading()

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled and not self._is_full:
            self._is_scheduled = True
            self._loop.call_soon(self._write_piece)

    def _write_piece(self) -> None:
        self._is_scheduled = False
        if self._transport.is_closing():
            self.drop()
        if not self._waiting or self._is_full:
            return
        rest = self._waiting.popleft()
        if len(rest) > PIECE_BYTES:
            self._waiting.appendleft(rest[PIECE_BYTES:])
        piece = rest[:PIECE_BYTES]
        self._waiting_bytes -= len(piece)
        self._transport.write(piece)
        if self._waiting:
            self._schedule()
        elif self._is_closing:
            self._transport.close()
        elif not self._is_full:
            self._protocol.resume_writing()
