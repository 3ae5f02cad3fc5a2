"""The boundary of the parser: however bytes are split or mutated, a request is read whole, refused, or not there."""

import asyncio
import itertools
from operator import attrgetter

import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from router_support.engine import MockEngine
from router_support.raw import BODY, HOST, chunked, connected, get, post
from router_support.serving import eventually, serving

from blade_router.http.client import Client
from blade_router.http.errors import Refused
from blade_router.http.head import RawRequest
from blade_router.http.listening import listen
from blade_router.http.request_reader import HttpLimits
from blade_router.http.server import Server

CONTENT = attrgetter("method", "target", "headers", "http11", "keep_alive", "length", "chunked", "body")
"""What a request says."""
VALID = (
    post(),
    post(b"", b"x-empty:"),
    get(b"/v1/models?limit=1", b"accept: */*"),
    chunked(BODY[:7], BODY[7:20], BODY[20:], trailer=b"x-sum: 1\r\n"),
    post(BODY, b"connection: upgrade", b"upgrade: h2c"),
    post(BODY, b"expect: 100-continue"),
    get(b"/live", version=b"1.0", method=b"HEAD").replace(HOST, HOST + b"connection: keep-alive\r\n"),
)
EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def spoilt(data: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    """Each change replaces some bytes at a place."""
    for place, length, new in changes:
        start = place % (len(data) + 1)
        data = data[:start] + new + data[start + length :]
    return data


splits = st.lists(st.integers(0, 2000), max_size=12)
some_bytes = st.one_of(
    st.binary(max_size=4),
    st.sampled_from((b"\r", b"\n", b"\r\n", b"\r\n\r\n", b" ", b":", b"\0", b"0\r\n\r\n", b"content-length: 5\r\n")),
    st.sampled_from((b"transfer-encoding: chunked\r\n", b"GET / HTTP/1.1\r\n", b"HTTP/2.0", b"ffffffff", b"\xff\xfe")),
)
mutations = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 6), some_bytes), min_size=1, max_size=6)


def pieces(data: bytes, places: list[int]) -> list[bytes]:
    cuts = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(cuts)]


class Recorder:
    """A handler that records its requests."""

    def __init__(self) -> None:
        self.requests: list[RawRequest] = []
        self.refusals: list[Refused] = []

    async def __call__(self, request: RawRequest, client: Client) -> None:
        self.requests.append(request)
        await client.start(200, [(b"content-length", b"2")])
        await client.finish(b"ok")


async def read_by_a_server(sent: list[bytes]) -> Recorder:
    """What a server makes of these bytes, sent in these pieces by a client that then goes."""
    seen = Recorder()
    server = Server(seen, HttpLimits(), refused=seen.refusals.append)
    listener = listen("127.0.0.1", 0)
    await server.start([listener])
    port = listener.getsockname()[1]
    try:
        async with connected(port) as client:
            await client.send_slowly(sent)
            client.send(b"\r\n\r\nGET /last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            await eventually(lambda: seen.refusals or (seen.requests and seen.requests[-1].target == b"/last"))
        await eventually(lambda: not server.connections)
    finally:
        await server.close()
    return seen


@EXAMPLES
@given(st.lists(st.sampled_from(VALID), min_size=1, max_size=4), splits)
def test_the_same_requests_are_read_however_they_are_split(requests: list[bytes], places: list[int]) -> None:
    async def both() -> tuple[Recorder, Recorder]:
        data = b"".join(requests)
        return await read_by_a_server([data]), await read_by_a_server(pieces(data, places))

    whole, split = uvloop.run(both())
    assert len(whole.requests) == len(requests) + 1
    assert list(map(CONTENT, split.requests)) == list(map(CONTENT, whole.requests))
    assert not whole.refusals
    assert not split.refusals


async def test_malformed_requests_harm_only_the_connection_they_come_on() -> None:
    """One router for all examples: what the first ones left behind would show at the last."""
    examples: list[list[bytes]] = []

    @settings(EXAMPLES, max_examples=200)
    @given(st.lists(st.sampled_from(VALID), min_size=1, max_size=3), mutations, splits)
    def collect(requests: list[bytes], changes: list[tuple[int, int, bytes]], places: list[int]) -> None:
        examples.append(pieces(spoilt(b"".join(requests), changes), places))

    collect()
    async with MockEngine("a", records=False) as engine, serving(engine) as router, connected(router.port) as healthy:
        healthy.send(post())
        assert (await healthy.response()).status == 200
        tasks = len(asyncio.all_tasks())
        for sent in examples:
            async with connected(router.port) as client:
                await client.send_slowly(sent)
            healthy.send(post())
            assert (await healthy.response()).status == 200, sent
        await eventually(lambda: len(router.server.connections) <= 2, "every mutated connection is gone")
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks)
        assert 500 not in router.router.metrics.requests
        await eventually(lambda: engine.active == 0)


@EXAMPLES
@given(st.binary(max_size=300), splits)
def test_bytes_that_are_nothing_are_no_request(data: bytes, places: list[int]) -> None:
    """Unless the bytes happen to be one: then it is read as they say."""
    seen = uvloop.run(read_by_a_server(pieces(data, places)))
    assert len(seen.requests) + len(seen.refusals) <= data.count(b"HTTP/1.") + 1
