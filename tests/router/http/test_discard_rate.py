"""Refused clients that go on sending: they get to read why, and all of them together are read at a bounded rate."""

import asyncio
import contextlib

import pytest
from router_support.engine import MockEngine
from router_support.raw import HOST, connected
from router_support.serving import serving

from blade_router.http.discard_rate import RATE, DiscardRate

PIECE = 1 << 20


def test_what_comes_within_the_rate_is_read_at_once() -> None:
    discards = DiscardRate()
    assert [discards.pause(RATE // 10, now) for now in (0.0, 0.1, 0.2, 5.0)] == [0.0] * 4


def test_what_exceeds_it_waits_for_as_long_as_all_of_it_takes() -> None:
    discards = DiscardRate()
    pauses = [discards.pause(RATE // 10, 100.0) for _ in range(6)]
    assert pauses[:2] == [0.0, 0.0]
    assert pauses[2:] == pytest.approx([0.3, 0.4, 0.5, 0.6])
    assert discards.pause(1, 100.7) == 0.0


@pytest.mark.interpreted
async def test_a_refused_client_that_sends_on_is_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blade_router.http.discard_rate.RATE", PIECE)
    async with MockEngine("a") as engine, serving(engine, body_budget_bytes=2 * PIECE) as router:
        dropped = 0
        pause = router.server.discards.pause

        class Counting(DiscardRate):
            def pause(self, size: int, now: float) -> float:
                nonlocal dropped
                dropped += size
                return pause(size, now)

        router.server.discards = Counting()
        async with connected(router.port) as client:
            client.send(b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"content-length: %d\r\n\r\n" % (1 << 30))
            response = await client.response()
            assert response.status == 413
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(0.5):
                    while True:
                        client.send(bytes(PIECE))
                        await client.writer.drain()
        assert 0 < dropped <= 4 * PIECE, "hundreds at full speed"
