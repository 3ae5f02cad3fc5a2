"""How long a response's head may take, and how large an event may be. What an engine may send: tests/security."""

import asyncio

import httpx
import pytest
from router_support.bad_engine import CHUNKED, EVENTS, HEAD, STAY, THINK, WHOLE, plays, routed
from router_support.engine import MockEngine, chunk
from router_support.serving import Running, eventually, question

from blade_router.http.upstream import connection as upstream


@pytest.mark.parametrize("pieces", [(HEAD,), (b"H",), (HEAD + b"x-head",)])
async def test_a_head_that_never_ends_is_given_up(pieces: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "HEAD_SECONDS", 0.05)
    async with routed(plays(*pieces, STAY)) as (router, bad):
        response = await router.chat()
        assert response.status_code == 503
        assert "protocol" in response.json()["error"]["message"]
        await eventually(lambda: not bad.open, "the router hung up")


@pytest.mark.parametrize(
    "pieces",
    [
        (b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n", THINK, WHOLE),
        (CHUNKED, THINK, b"2\r\n{", THINK, b"}\r\n0\r\n", THINK, b"\r\n"),
    ],
    ids=["after an interim response", "in the body"],
)
async def test_only_the_head_has_a_deadline(pieces: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "HEAD_SECONDS", 0.05)
    async with routed(plays(*pieces)) as (router, _):
        response = await router.chat()
        assert (response.status_code, response.content) == (200, b"{}")


async def test_ten_megabytes_in_one_event_pass_and_others_do_not_notice() -> None:
    event = b"data: %b\n\n" % (b"x" * (10 << 20))
    pieces = [chunk(event[start : start + 65536]) for start in range(0, len(event), 65536)]
    gate = asyncio.Semaphore(0)
    async with (
        MockEngine("good", gate=gate, tokens=20) as good,
        routed(plays(EVENTS, *pieces, b"0\r\n\r\n"), good) as (router, _),
    ):
        responses = [asyncio.create_task(_post_stream(router)) for _ in range(2)]
        await eventually(lambda: good.active == 1, "one of the two went to each")
        for _ in range(20):
            gate.release()
        small, big = sorted([await response for response in responses], key=lambda response: len(response.content))
    assert big.content == event
    assert small.content == b"".join(good.event(index) for index in range(20)) + b"data: [DONE]\n\n"


async def _post_stream(router: Running) -> httpx.Response:
    return await router.client.post("/v1/chat/completions", json=question(stream=True))
