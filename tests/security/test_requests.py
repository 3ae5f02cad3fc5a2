"""A client may send anything: it costs nobody else anything, and no engine sees what can be read in two ways."""

import pytest
from router_support.engine import MockEngine
from router_support.raw import BODY, HOST, connected, post
from router_support.serving import serving
from security.requests import BROKEN, GOOD

UPGRADE = b"connection: upgrade\r\nupgrade: websocket\r\n"


@pytest.mark.parametrize("shape", BROKEN)
async def test_what_can_be_read_in_two_ways_is_read_in_none(shape: str) -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        client.send(BROKEN[shape])
        response = await client.response()
        assert (response.status, response.header("connection")) == (400, "close")
        assert response.error["type"] == "invalid_request_error"
        assert await client.closed() == b"", "one response, whatever followed"
        assert engine.received == []
        assert router.router.metrics.requests == {400: 1}


@pytest.mark.parametrize("shape", BROKEN)
async def test_a_broken_request_behind_a_good_one_costs_only_itself(shape: str) -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        client.send(post() + BROKEN[shape])
        assert [(await client.response()).status for _ in range(2)] == [200, 400]
        assert await client.closed() == b""
        assert len(engine.received) == 1


@pytest.mark.parametrize("shape", [shape for shape in BROKEN if "chunked\r\n\r\n" in BROKEN[shape].decode("latin-1")])
async def test_an_offer_of_an_upgrade_hides_no_broken_framing(shape: str) -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        client.send(BROKEN[shape].replace(HOST, HOST + UPGRADE))
        assert (await client.response()).status == 400
        assert await client.closed() == b""
        assert engine.received == []


@pytest.mark.parametrize("shape", GOOD)
async def test_what_is_right_arrives_whole_and_the_connection_stays(shape: str) -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        for _ in range(2):
            client.send(GOOD[shape])
            assert (await client.response()).status == 200
        assert [request.body for request in engine.received] == [BODY, BODY]
        assert engine.received[0].header("upgrade") == []
