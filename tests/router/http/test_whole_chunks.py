"""Chunks that come one by one are read without the parser: with the same outcome wherever the stream is cut."""

import asyncio

import pytest

from blade_router.http.upstream.chunk import whole_chunk
from blade_router.http.upstream.connection import Connection, Sink

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
TRICKY = b"14\r\nabcdefghijklmnopqrst\r\n"
"""Of a body: looks like a chunk."""
BODIES = [b"a" * 20, TRICKY, b"\r\n" * 10, b"12\r\n" + b"b" * 16, b"c" * 17]


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


RAW = b"".join(map(chunk, BODIES))


class Taker(Sink):
    def __init__(self) -> None:
        self.got: list[bytes] = []

    def put(self, part: bytes) -> bool:
        self.got.append(part)
        return True


@pytest.mark.parametrize("size", [1, 15, 16, 17, 255, 256, 257, 2046, 2047, 2048, 4095, 4096, 70_000])
def test_only_a_whole_chunk_is_one(size: int) -> None:
    body = b"x" * size
    assert whole_chunk(chunk(body)) == (body if 16 <= size <= 2047 else b"")
    assert not whole_chunk(chunk(body)[:-1])
    assert not whole_chunk(chunk(body) + b"1")
    assert not whole_chunk(b"0" + chunk(body))
    assert not whole_chunk(chunk(body)[:-2] + b"xx")


@pytest.mark.parametrize("data", [b"", b"\r\n", b"0\r\n\r\n", b"14\r\n" + b"x" * 20 + b"\n\n", b"1\r\n\r\n\r\n"])
def test_other_data_is_no_chunk(data: bytes) -> None:
    assert not whole_chunk(data)


def test_a_stream_that_is_cut_anywhere_stays_the_same() -> None:
    """The first cut brings the parser out of step with the chunks; from the second on they come one by one again."""
    ends = [sum(len(chunk(body)) for body in BODIES[: at + 1]) for at in range(len(BODIES))]

    async def read(cuts: list[int]) -> bytes:
        connection = Connection()
        connection.connection_made(asyncio.Transport())
        connection._busy = True
        taker = Taker()
        connection.data_received(HEAD)
        reading = asyncio.create_task(connection.stream_to(taker))
        await asyncio.sleep(0)
        for start, end in zip([0, *cuts], [*cuts, len(RAW)], strict=True):
            if start < end:
                connection.data_received(RAW[start:end])
        connection.data_received(b"0\r\n\r\n")
        await reading
        return b"".join([*taker.got, await connection.read()])

    async def main() -> None:
        for first in range(len(RAW)):
            for second in {first, *(end for end in ends if end > first), *range(first, min(first + 4, len(RAW)))}:
                cuts = [first, second, *(end for end in ends[:-1] if end > second)]
                assert await read(cuts) == b"".join(BODIES), cuts

    asyncio.run(main())
