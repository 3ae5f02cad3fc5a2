"""Failover: a failing engine costs the client time, not responses, as long as nothing has been sent."""

import asyncio
import json
import socket
from collections import Counter

import openai
import pytest
from router_support.engine import MockEngine, Mode
from router_support.serving import Running, eventually, question, raw_post, serving

from blade_protocol.routing import EndpointConfig

BEFORE_FIRST_BYTE: list[Mode] = ["status", "draining", "reset", "reset-after-head", "garbage"]


async def endpoints_of(router: Running, count: int, stream: bool) -> Counter[str]:
    """Endpoints that served ``count`` requests, four at once. Every response must be whole."""
    limit = asyncio.Semaphore(4)

    async def one() -> str:
        async with limit:
            response = await router.chat(stream=stream)
        assert response.status_code == 200, response.text
        if stream:
            assert response.content.endswith(b"data: [DONE]\n\n")
            assert b"error" not in response.content
        else:
            response.json()
        return response.headers["x-blade-endpoint"]

    return Counter(await asyncio.gather(*(one() for _ in range(count))))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", BEFORE_FIRST_BYTE)
async def test_failure_before_the_first_byte_is_hidden_from_clients(mode: Mode, stream: bool) -> None:
    async with MockEngine("good", tokens=2) as good, MockEngine("bad", mode="ok") as bad:
        async with serving(good, bad) as router:
            bad.mode = mode
            assert set(await endpoints_of(router, 24, stream)) == {"good"}
            assert bad.received, "the failing engine never got a request"
            assert await router.metric('blade_router_requests_total{code="200"}') == 24


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_server_errors_are_retried_elsewhere(status: int) -> None:
    async with MockEngine("good") as good, MockEngine("bad", mode="status", status=status) as bad:
        async with serving(good, bad) as router:
            assert await endpoints_of(router, 8, False) == {"good": 8}
            assert await router.metric(f'blade_router_retries_total{{reason="{status}"}}') >= 1


async def test_unary_response_cut_short_is_retried() -> None:
    async with MockEngine("good") as good, MockEngine("bad", mode="break") as bad:
        async with serving(good, bad) as router:
            assert await endpoints_of(router, 8, False) == {"good": 8}
            assert bad.received


@pytest.mark.parametrize("stream", [False, True])
async def test_closed_port_is_hidden_from_clients_and_marked_down_at_once(stream: bool) -> None:
    async with MockEngine("a") as a, MockEngine("b") as b, serving(a, b) as router:
        await endpoints_of(router, 8, stream)  # warm connections to both
        await b.kill()
        assert set(await endpoints_of(router, 24, stream)) == {"a"}
        assert (await router.status())["endpoints"]["b"]["up"] is False


@pytest.mark.parametrize("stream", [False, True])
async def test_kill_under_load_loses_nothing_before_the_first_byte(stream: bool) -> None:
    gate = asyncio.Semaphore(0)
    async with MockEngine("a") as a, MockEngine("b", gate=gate) as b, serving(a, b) as router:
        pending = asyncio.create_task(endpoints_of(router, 16, stream))
        await eventually(lambda: b.active >= 2, "requests wait in the engine that dies")
        await b.kill()
        assert await pending == {"a": 16}


async def test_hanging_engine_is_given_up_after_the_first_byte_timeout() -> None:
    async with MockEngine("good") as good, MockEngine("bad", mode="hang") as bad:
        async with serving(good, bad, first_byte_timeout=0.1) as router:
            assert await endpoints_of(router, 6, False) == {"good": 6}
            assert bad.received
            await eventually(lambda: bad.active == 0, "the engine that hung was stopped")
            assert await router.metric('blade_router_retries_total{reason="timeout"}') >= 1


async def test_first_byte_timeout_does_not_limit_the_rest_of_a_stream() -> None:
    gate = asyncio.Semaphore(1)
    async with MockEngine("a", gate=gate) as engine, serving(engine, first_byte_timeout=0.1) as router:
        async with router.client.stream("POST", "/v1/chat/completions", json=question(stream=True)) as response:
            chunks = response.aiter_raw()
            assert await anext(chunks) == engine.event(0)
            await asyncio.sleep(0.3)  # three times the limit
            gate.release()
            assert await anext(chunks) == engine.event(1)


async def test_death_in_mid_stream_ends_in_an_error_event() -> None:
    async with MockEngine("a", mode="break", tokens=3) as engine, serving(engine) as router:
        response = await router.chat(stream=True)
        assert router.router.endpoints.all[0].health.failures == 1
    assert response.status_code == 200
    events = response.content.split(b"\n\n")
    assert [event + b"\n\n" for event in events[:2]] == [engine.event(0), engine.event(1)]
    error = json.loads(events[2].removeprefix(b"data: "))["error"]
    assert error["type"] == "server_error"
    assert error["code"] == "engine_lost"
    assert events[3:] == [b""], "nothing of the broken event, no [DONE]"


async def test_official_client_raises_on_the_error_event() -> None:
    async with MockEngine("a", mode="break", tokens=3) as engine, serving(engine) as router:
        async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none") as client:
            parts = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            assert (await anext(parts)).choices[0].delta.content == "a-0"
            assert (await anext(parts)).choices[0].delta.content == "a-1"
            with pytest.raises(openai.APIError, match="engine was lost"):
                await anext(parts)


async def test_long_unary_response_that_breaks_off_closes_the_connection() -> None:
    async with MockEngine("a", mode="break", padding="y" * 20_000_000) as engine, serving(engine) as router:
        reader, writer = await raw_post(router.port, question())
        data = await reader.read()
        writer.close()
    head, body = data.split(b"\r\n\r\n", 1)
    announced = int(next(line for line in head.split(b"\r\n") if line.startswith(b"content-length")).split()[1])
    assert 0 < len(body) < announced


async def test_no_engine_returns_503_with_retry_after() -> None:
    async with MockEngine("a") as a, MockEngine("b") as b, serving(a, b) as router:
        await a.kill()
        await b.kill()
        response = await router.chat()
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["type"] == "overloaded_error"
        await eventually(lambda: router.router.endpoints.usable_count() == 0)
        assert (await router.client.get("/health")).status_code == 503
        assert (await router.client.get("/live")).status_code == 200


async def test_no_endpoint_returns_503_with_retry_after() -> None:
    async with serving() as router:
        response = await router.chat()
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert response.json()["error"]["code"] == "no_endpoint"
        assert "no endpoint" in (await router.client.get("/health")).json()["reason"]


async def test_last_response_is_relayed_when_every_engine_fails() -> None:
    async with MockEngine("a", mode="status", status=503) as a, MockEngine("b", mode="status", status=503) as b:
        async with serving(a, b) as router:
            response = await router.chat()
            assert response.status_code == 503
            assert "says 503" in response.json()["error"]["message"]
            assert response.headers["retry-after"] == "1"
            assert len(a.received) == len(b.received) == 1


async def test_tries_are_bounded() -> None:
    async with MockEngine("a", mode="status") as a, MockEngine("b", mode="status") as b:
        async with MockEngine("c", mode="status") as c, serving(a, b, c, max_tries=2) as router:
            assert (await router.chat()).status_code == 500
            assert len(a.received) + len(b.received) + len(c.received) == 2


async def test_connect_timeout_moves_on_and_is_no_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener whose queue is full accepts nothing: the connection attempt must be given up."""
    monkeypatch.setattr("blade_router.endpoints.health_check.UNHEALTHY_AFTER", 1000)  # no check takes it out before
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        blockers = [socket.socket() for _ in range(4)]
        for blocker in blockers:
            blocker.setblocking(False)
            blocker.connect_ex(full.getsockname())
        async with MockEngine("good") as good:
            endpoints = (
                EndpointConfig(url=f"http://127.0.0.1:{full.getsockname()[1]}", name="full"),
                EndpointConfig(url=good.url, name="good"),
            )
            async with serving(wait=False, endpoints=endpoints, connect_timeout=0.2, max_tries=1) as router:
                for endpoint in router.router.endpoints.all:
                    endpoint.health.mark_up()
                assert await endpoints_of(router, 4, False) == {"good": 4}
                assert await router.metric('blade_router_retries_total{reason="connect"}') >= 1
        for blocker in blockers:
            blocker.close()


async def test_a_stalled_response_counts_as_broken() -> None:
    gate = asyncio.Semaphore(1)
    async with MockEngine("a", gate=gate) as engine, serving(engine, stall_timeout=0.2) as router:
        response = await router.chat(stream=True)
    assert response.status_code == 200
    assert "a-0" in response.text
    assert '"code":"engine_lost"' in response.text
    assert "stalled" in response.text
    assert engine.aborted == 1


async def test_an_engine_that_thinks_is_not_stalled() -> None:
    async with MockEngine("a", delay=0.1) as engine, serving(engine, stall_timeout=0.05) as router:
        assert (await router.chat()).status_code == 200
