"""What one turn of the event loop does for a TLS connection: a piece of an answer, some records, few without data."""

import asyncio
import gc
import ssl
import weakref

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from service.http import tls
from service.http.tls import PIECE_BYTES, RECORDS_PER_TURN, LimitedContext, PacedTransport, TooManyRecords


class Peers:
    """Two ends of a connection after their handshake; the limited one is the client, to which servers send tickets."""

    def __init__(self, certificate, tickets=2):
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), LimitedContext(ssl.PROTOCOL_TLS_CLIENT)
        server.load_cert_chain(certificate / "certificate", certificate / "key")
        server.num_tickets = tickets
        client.load_verify_locations(certificate / "certificate")
        self.incoming, self.outgoing, self.ended = ssl.MemoryBIO(), ssl.MemoryBIO(), []
        to_server = ssl.MemoryBIO()
        self.sent = ssl.MemoryBIO()
        self.sender = server.wrap_bio(to_server, self.sent, server_side=True)
        self.limited = client.wrap_bio(self.incoming, self.outgoing, server_hostname="127.0.0.1")
        self.limited.on_turn_end = lambda: self.ended.append(True)
        pending = [self.limited, self.sender]
        while pending:
            for end in tuple(pending):
                try:
                    end.do_handshake()
                    pending.remove(end)
                except ssl.SSLWantReadError:
                    pass
                to_server.write(self.outgoing.read())
                self.deliver()

    def deliver(self, step=7):
        """Give the limited end what the other one has sent, a few bytes after the others."""
        content = self.sent.read()
        for start in range(0, len(content), step):
            self.incoming.write(content[start : start + step])

    def read_all(self):
        """What the limited end reads until it wants more."""
        content = b""
        while True:
            try:
                content += self.limited.read(1 << 18)
            except ssl.SSLWantReadError:
                return content


def test_data_comes_whole(certificate):
    peers = Peers(certificate)
    content = bytes(range(256)) * 1000
    peers.sender.write(content)
    peers.deliver()
    assert peers.read_all() == content
    assert not peers.ended


def test_a_record_that_has_not_come_whole_waits(certificate):
    peers = Peers(certificate)
    peers.sender.write(b"content")
    record = peers.sent.read()
    for byte in record[:-1]:
        peers.incoming.write(bytes([byte]))
        assert peers.read_all() == b""
    peers.incoming.write(record[-1:])
    assert peers.read_all() == b"content"


def test_a_turn_ends_after_some_records(certificate):
    peers = Peers(certificate)
    for _ in range(RECORDS_PER_TURN + 10):
        peers.sender.write(b"x")
    peers.deliver()
    assert peers.read_all() == b"x" * RECORDS_PER_TURN
    assert peers.ended == [True]
    assert peers.read_all() == b""
    peers.limited.begin_turn()
    assert peers.read_all() == b"x" * 10


@pytest.mark.parametrize(("tickets", "is_refused"), [(tls.MAX_EMPTY_RECORDS, False), (tls.MAX_EMPTY_RECORDS + 1, True)])
def test_records_without_data_are_limited(certificate, tickets, is_refused):
    peers = Peers(certificate, tickets)
    if is_refused:
        with pytest.raises(TooManyRecords):
            peers.read_all()
    else:
        assert peers.read_all() == b""


def test_data_allows_more_records_without(certificate, monkeypatch):
    monkeypatch.setattr(tls, "DATA_PER_EMPTY_RECORD", 100)
    peers = Peers(certificate, tls.MAX_EMPTY_RECORDS)
    assert peers.read_all() == b""
    for _ in range(3):
        peers.sender.write(b"x" * 100)
    peers.deliver()
    assert len(peers.read_all()) == 300
    assert peers.limited._allowance == 300


def test_what_is_no_tls_is_refused(certificate):
    context = LimitedContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "certificate", certificate / "key")
    incoming = ssl.MemoryBIO()
    session = context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    incoming.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    with pytest.raises(ssl.SSLError, match=r"(?i)http.request"):
        session.do_handshake()


class Transport:
    """Takes ``room`` pieces, then calls ``pause`` of its protocol."""

    def __init__(self, room):
        self.room, self.written, self.is_closed, self.paced = room, [], False, None

    def write(self, data):
        self.written.append(bytes(data))
        if len(self.written) == self.room:
            self.paced.pause()

    def close(self):
        self.is_closed = True

    abort = close

    def is_closing(self):
        return self.is_closed

    def get_write_buffer_size(self):
        return 0


class Protocol:
    """Notes whether it may write, as uvicorn's does."""

    def __init__(self, loop):
        self.loop, self.flow = loop, FlowControl(None)

    def resume_writing(self):
        self.flow.resume_writing()


def paced(room=100):
    transport = Transport(room)
    protocol = Protocol(asyncio.get_running_loop())
    transport.paced = PacedTransport(transport, protocol)
    return transport.paced, transport, protocol


def test_a_large_answer_is_written_a_piece_a_turn():
    async def write():
        pacing, transport, protocol = paced()
        content = bytes(range(256)) * (3 * PIECE_BYTES // 256 + 1)
        pacing.write(b"head")
        pacing.write(content)
        pacing.write(b"end")
        assert transport.written == [b"head"]
        assert protocol.flow.write_paused
        for pieces in range(5):
            assert pacing.get_write_buffer_size() == len(content) + 3 - sum(map(len, transport.written[1:]))
            await asyncio.sleep(0)
            assert len(transport.written) == pieces + 2
        assert b"".join(transport.written) == b"head" + content + b"end"
        assert max(map(len, transport.written)) == PIECE_BYTES
        assert not protocol.flow.write_paused

    asyncio.run(write())


def test_it_waits_while_the_transport_is_full_and_closes_at_the_end():
    async def write():
        pacing, transport, _protocol = paced(room=2)
        pacing.write(bytes(4 * PIECE_BYTES))
        pacing.close()
        assert pacing.is_closing()
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(transport.written) == 2
        assert not transport.is_closed
        assert not pacing.resume()
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(transport.written) == 4
        assert transport.is_closed

    asyncio.run(write())


def test_a_closed_transport_is_freed_at_once():
    """Without a garbage collection, which may come much later: each has buffers of hundreds of kilobytes."""

    async def write():
        pacing, transport, protocol = paced()
        protocol.transport = pacing
        freed = weakref.ref(pacing)
        del pacing, transport.paced, transport, protocol
        return freed()

    gc.disable()
    try:
        assert asyncio.run(write()) is None
    finally:
        gc.enable()


def test_abort_drops_what_waits():
    async def write():
        pacing, transport, _protocol = paced()
        pacing.write(bytes(4 * PIECE_BYTES))
        pacing.abort()
        await asyncio.sleep(0)
        assert transport.is_closed
        assert not transport.written
        assert not pacing.get_write_buffer_size()

    asyncio.run(write())
