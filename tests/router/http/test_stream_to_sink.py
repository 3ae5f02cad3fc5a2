"""Pieces of a response that are handed on as they come: all of them, once, in order, however the taker falters."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blade_router.http.upstream.connection import Connection, Sink
from blade_router.http.upstream.errors import ConnectionLost

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        self.aborted = True


class Taker(Sink):
    def __init__(self, take: Callable[[bytes], bool]) -> None:
        self.take = take

    def put(self, part: bytes) -> bool:
        return self.take(part)


def exchange() -> tuple[Connection, FakeTransport]:
    """A connection whose request has been sent; inside the event loop."""
    connection, transport = Connection(), FakeTransport()
    connection.connection_made(transport)
    connection.send(b"GET / HTTP/1.1\r\n\r\n", b"")
    connection.data_received(HEAD)
    return connection, transport


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=9), max_size=12),
    cuts=st.lists(st.integers(1, 24), max_size=12),
    turns=st.lists(st.integers(0, 3), max_size=24),
    takes=st.lists(st.booleans(), max_size=24),
)
def test_nothing_is_lost_or_given_twice(
    pieces: list[bytes], cuts: list[int], turns: list[int], takes: list[bool]
) -> None:
    """Cut anywhere, with the reader getting its turn now and then, and a taker that has had enough now and then."""
    raw = b"".join(map(chunk, pieces)) + END
    got: list[bytes] = []
    ready = iter(takes)

    def sink(part: bytes) -> bool:
        got.append(part)
        return next(ready, True)

    async def read(connection: Connection) -> None:
        while not connection.complete:
            await connection.stream_to(Taker(sink))
            await asyncio.sleep(0)
        got.append(await connection.read())

    async def main() -> None:
        nonlocal raw
        connection, _ = exchange()
        reading = asyncio.create_task(read(connection))
        waits = iter(turns)
        sizes = iter(cuts)
        while raw:
            for _ in range(next(waits, 1)):
                await asyncio.sleep(0)
            size = next(sizes, len(raw))
            part, raw = raw[:size], raw[size:]
            connection.data_received(part)
        await asyncio.wait_for(reading, 5)
        assert connection.at_end

    asyncio.run(main())
    assert b"".join(got) == b"".join(pieces)


async def test_pieces_reach_the_sink_without_waking_a_task() -> None:
    connection, _ = exchange()
    got: list[bytes] = []
    streaming = asyncio.create_task(connection.stream_to(Taker(lambda part: not got.append(part))))
    await asyncio.sleep(0)
    for number in range(3):
        connection.data_received(chunk(b"%d" % number))
        assert got[-1] == b"%d" % number, "within the call"
    connection.data_received(chunk(b"last") + END)
    await streaming
    assert got == [b"0", b"1", b"2"]
    assert await connection.read() == b"last", "so that it can go out with the end"


async def test_who_has_enough_makes_the_engine_wait() -> None:
    connection, transport = exchange()
    streaming = asyncio.create_task(connection.stream_to(Taker(lambda part: False)))
    await asyncio.sleep(0)
    connection.data_received(chunk(b"first"))
    await streaming
    large = b"x" * 200_000
    for _ in range(2):
        connection.data_received(chunk(large))
    assert not transport.reading
    got: list[bytes] = []
    streaming = asyncio.create_task(connection.stream_to(Taker(lambda part: not got.append(part))))
    await asyncio.sleep(0)
    assert transport.reading
    assert got == [large * 2]
    streaming.cancel()


async def test_an_error_of_the_sink_ends_the_exchange() -> None:
    connection, transport = exchange()

    def sink(part: bytes) -> bool:
        raise LookupError("nobody there")

    streaming = asyncio.create_task(connection.stream_to(Taker(sink)))
    await asyncio.sleep(0)
    connection.data_received(chunk(b"first"))
    with pytest.raises(LookupError, match="nobody there"):
        await streaming
    assert transport.aborted


async def test_a_lost_engine_is_noticed() -> None:
    connection, _ = exchange()
    got: list[bytes] = []
    streaming = asyncio.create_task(connection.stream_to(Taker(lambda part: not got.append(part))))
    await asyncio.sleep(0)
    connection.data_received(chunk(b"first"))
    connection.connection_lost(None)
    with pytest.raises(ConnectionLost):
        await streaming
    assert got == [b"first"]
