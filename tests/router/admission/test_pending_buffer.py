"""With no engine ready a request waits for one, within bounds, and streams get heartbeats."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any, cast

import pytest
from router_support.engine import MockEngine
from router_support.serving import Running, eventually, question, raw_post, serving

from blade_protocol.routing import EndpointConfig, HoldConfig, QueueConfig, RouterConfig
from blade_router.admission.pending_buffer import PendingBuffer
from blade_router.admission.request_queue import UNQUEUED
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.http.client import Client
from blade_router.http.errors import Refused


def configured(folder: Path, *, queue: dict[str, Any] | None = None, **hold: Any) -> Path:
    path = folder / "router.json"
    path.write_text(json.dumps({"hold": {"max_requests": 100, **hold}, "queue": queue or {}}))
    return path


async def port_of(engine: MockEngine) -> EndpointConfig:
    """An endpoint nobody listens at until the engine is started."""
    await engine.start()
    await engine.kill()
    return EndpointConfig(url=engine.url, name=engine.name)


def buffer(router: Running) -> PendingBuffer:
    return router.router.request_queues.pending


@pytest.mark.parametrize("known", [True, False])
async def test_unary_request_gets_a_late_response(tmp_path: Path, known: bool) -> None:
    """The endpoint is listed and does not respond, or is not listed yet."""
    engine = MockEngine("a")
    endpoint = await port_of(engine)
    async with serving(wait=False, endpoints=(endpoint,) if known else (), config=configured(tmp_path)) as router:
        pending = asyncio.create_task(router.chat())
        await eventually(lambda: buffer(router).count() == 1)
        async with engine:
            if not known:
                router.router.apply(RouterConfig(endpoints=(endpoint,), hold=HoldConfig(max_requests=100)))
            response = await pending
        assert response.status_code == 200
        assert response.headers["x-blade-endpoint"] == "a"
        assert buffer(router).arrivals == {"": 1}
        assert buffer(router).count() == 0


@pytest.mark.parametrize("mode", ["draining", "status"])
async def test_request_waits_for_an_engine_that_reports_not_ready(tmp_path: Path, mode: Any) -> None:
    async with MockEngine("a", mode=mode, status=503, health=503) as engine:
        async with serving(engine, wait=False, config=configured(tmp_path)) as router:
            await eventually(lambda: engine.probes > 0)
            pending = asyncio.create_task(router.chat())
            await eventually(lambda: buffer(router).count() == 1)
            engine.mode, engine.health = "ok", 200
            assert (await pending).status_code == 200


async def test_stream_gets_comments_and_then_its_events(tmp_path: Path) -> None:
    engine = MockEngine("a")
    endpoint = await port_of(engine)
    async with serving(wait=False, endpoints=(endpoint,), config=configured(tmp_path, heartbeat=0.02)) as router:
        async with router.client.stream("POST", "/v1/chat/completions", json=question(stream=True)) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            parts = response.aiter_raw()
            assert await anext(parts) == b": waiting\n\n"
            assert b": waiting\n\n" in await anext(parts)
            async with engine:
                text = b"".join([part async for part in parts])
        events = text.replace(b": waiting\n\n", b"")
        assert events == b"".join(engine.event(index) for index in range(3)) + b"data: [DONE]\n\n"


async def test_fast_start_leaves_the_response_as_it_is(tmp_path: Path) -> None:
    """Before the first comment the head is not sent: status and headers are still the engine's."""
    engine = MockEngine("a", mode="status", status=418)
    endpoint = await port_of(engine)
    async with serving(wait=False, endpoints=(endpoint,), config=configured(tmp_path)) as router:
        pending = asyncio.create_task(router.chat(stream=True))
        await eventually(lambda: buffer(router).count() == 1)
        async with engine:
            assert (await pending).status_code == 418


async def test_error_after_a_comment_is_an_event(tmp_path: Path) -> None:
    path = configured(tmp_path, heartbeat=0.02, max_age=0.1)
    async with serving(wait=False, config=path) as router:
        response = await router.chat(stream=True)
        assert response.status_code == 200
        *comments, event, rest = response.content.split(b"\n\n")
        assert set(comments) == {b": waiting"}
        assert rest == b""
        error = json.loads(event.removeprefix(b"data: "))["error"]
        assert (error["type"], error["code"]) == ("overloaded_error", "hold_timeout")


async def test_too_long_is_refused_with_503(tmp_path: Path) -> None:
    async with serving(wait=False, config=configured(tmp_path, max_age=0.05)) as router:
        response = await router.chat()
        assert (response.status_code, response.json()["error"]["code"]) == (503, "hold_timeout")
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert buffer(router).count() == 0


async def test_all_waits_of_a_request_count_together() -> None:
    buffer = PendingBuffer(EndpointSet(), HoldConfig(max_requests=9, max_age=60))
    first = await pend(buffer, "a")
    again = await pend(buffer, "b", waited=61.0)
    with pytest.raises(Refused, match="no engine became ready within 60 s"):
        await again
    older = await pend(buffer, "b", waited=30.0)
    assert 30.0 <= buffer.oldest("") < 60.0
    assert not first.done()
    buffer.configure(HoldConfig(max_requests=9, max_age=20))
    with pytest.raises(Refused, match="no engine became ready within 20 s"):
        await older
    assert not first.done()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert (buffer.count(), buffer._age_timer) == (0, None)


@pytest.mark.parametrize("bound", [{"max_requests": 1}, {"max_bytes": 100}])
async def test_beyond_the_bounds_requests_are_refused(tmp_path: Path, bound: dict[str, int]) -> None:
    async with serving(wait=False, config=configured(tmp_path, **bound)) as router:
        _, writer = await raw_post(router.port, question())
        await eventually(lambda: buffer(router).count() == 1)
        response = await router.chat()
        assert (response.status_code, response.json()["error"]["code"]) == (503, "hold_full")
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert await router.metric('blade_router_refused_requests_total{reason="hold_full"}') == 1
        writer.close()
        await eventually(lambda: buffer(router).count() == 0, "a client that disconnects is not pending any more")
        assert buffer(router)._bytes == 0


@pytest.mark.parametrize("max_requests", [100, 0])
async def test_nobody_waits_for_a_service_that_was_scaled_to_zero(tmp_path: Path, max_requests: int) -> None:
    hold = {"max_requests": max_requests, "scaled_to_zero": True}
    async with serving(wait=False, config=configured(tmp_path, **hold)) as router:
        response = await router.chat()
        assert (response.status_code, response.json()["error"]["code"]) == (503, "scaled_to_zero")
        assert "retry-after" not in response.headers
        assert buffer(router).arrivals == {}


async def test_what_waits_is_refused_when_the_service_is_scaled_to_zero_and_waits_again_when_it_comes_back(
    tmp_path: Path,
) -> None:
    engine = MockEngine("a")
    endpoint = await port_of(engine)
    async with serving(wait=False, endpoints=(endpoint,), config=configured(tmp_path)) as router:
        pending = asyncio.create_task(router.chat())
        await eventually(lambda: buffer(router).count() == 1)
        hold = HoldConfig(max_requests=100, scaled_to_zero=True)
        router.router.apply(RouterConfig(endpoints=(endpoint,), hold=hold))
        response = await pending
        assert (response.status_code, response.json()["error"]["code"]) == (503, "scaled_to_zero")
        router.router.apply(RouterConfig(endpoints=(endpoint,), hold=HoldConfig(max_requests=100)))
        pending = asyncio.create_task(router.chat())
        await eventually(lambda: buffer(router).count() == 1)
        async with engine:
            assert (await pending).status_code == 200


async def test_an_engine_that_is_still_there_serves_a_service_that_is_scaled_to_zero(tmp_path: Path) -> None:
    hold = {"max_requests": 100, "scaled_to_zero": True}
    async with MockEngine("a") as engine, serving(engine, config=configured(tmp_path, **hold)) as router:
        assert (await router.chat()).status_code == 200


async def test_nothing_is_buffered_unless_it_is_configured(tmp_path: Path) -> None:
    async with serving(wait=False, config=configured(tmp_path, max_requests=0)) as router:
        assert (await router.chat()).status_code == 503


async def test_released_in_order_and_no_faster_than_the_queue_allows(tmp_path: Path) -> None:
    permits = asyncio.Semaphore(0)
    engine = MockEngine("a", gate=permits)
    endpoint = await port_of(engine)
    path = configured(tmp_path, queue={"endpoint_requests": 2, "max_requests": 1})
    async with serving(wait=False, endpoints=(endpoint,), config=path) as router:
        pending: list[asyncio.Task[Any]] = []
        for number in range(6):
            pending.append(asyncio.create_task(router.chat(headers={"x-number": str(number)})))
            await eventually(lambda number=number: buffer(router).count() == number + 1)  # type: ignore[misc]
        queue = router.router.request_queues.queue()
        assert queue.state().running == 0, "a pending request has no place with the engines"
        async with engine:
            await eventually(lambda: engine.active == 2)
            assert queue.state().requests == 4, "admitted once: the queue's bounds do not apply again"
            for ended in range(6):
                permits.release()
                await eventually(lambda ended=ended: len(engine.received) == min(6, ended + 3))  # type: ignore[misc]
                assert engine.active <= 2
            assert [(await each).status_code for each in pending] == [200] * 6
            assert [received.header("x-number") for received in engine.received[2:]] == [[str(n)] for n in range(2, 6)]
            assert {received.header("x-number")[0] for received in engine.received[:2]} == {"0", "1"}


async def test_client_that_disconnects_after_its_release_leaves_the_queue(tmp_path: Path) -> None:
    permits = asyncio.Semaphore(0)
    engine = MockEngine("a", gate=permits)
    endpoint = await port_of(engine)
    async with serving(
        wait=False, endpoints=(endpoint,), config=configured(tmp_path, queue={"endpoint_requests": 1})
    ) as router:
        writers = []
        for number in range(2):
            _, writer = await raw_post(router.port, question())
            await eventually(lambda number=number: buffer(router).count() == number + 1)  # type: ignore[misc]
            writers.append(writer)
        queue = router.router.request_queues.queue()
        async with engine:
            await eventually(lambda: engine.active == 1 and queue.state().requests == 1)
            writers[1].close()
            await eventually(lambda: queue.state().requests == 0)
            writers[0].close()
            await eventually(lambda: queue.state().running == 0)
            assert len(engine.received) == 1


async def test_service_that_recovers_serves_what_it_lost(tmp_path: Path) -> None:
    """An engine that dies with requests before their first byte: they wait for its successor."""
    gate = asyncio.Semaphore(0)
    async with MockEngine("a", gate=gate) as engine:
        async with serving(engine, config=configured(tmp_path)) as router:
            pending = [asyncio.create_task(router.chat()) for _ in range(3)]
            await eventually(lambda: engine.active == 3)
            await engine.kill()
            late = asyncio.create_task(router.chat())
            await eventually(lambda: buffer(router).count() > 0)
            for _ in range(10):
                gate.release()
            await engine.start()
            assert (await late).status_code == 200
            assert {(await each).status_code for each in pending} == {200}


async def test_queued_requests_stay_pending_when_the_last_endpoint_goes(tmp_path: Path) -> None:
    permits = asyncio.Semaphore(0)
    queue = QueueConfig(endpoint_requests=1, max_age=30)
    async with MockEngine("a", gate=permits) as engine:
        endpoint = EndpointConfig(url=engine.url, name="a")
        async with serving(wait=False) as router:
            router.router.apply(RouterConfig(endpoints=(endpoint,), queue=queue, hold=HoldConfig(max_requests=9)))
            await eventually(router.router.endpoints.usable_count)
            pending = [asyncio.create_task(router.chat()) for _ in range(2)]
            await eventually(lambda: router.router.request_queues.queue().state().requests == 1)
            router.router.apply(RouterConfig(queue=queue, hold=HoldConfig(max_requests=9)))
            await eventually(lambda: buffer(router).count() == 1)
            permits.release()
            permits.release()
            router.router.apply(RouterConfig(endpoints=(endpoint,), queue=queue, hold=HoldConfig(max_requests=9)))
            assert [(await each).status_code for each in pending] == [200, 200]


class FakeClient:
    def attach(self, work: Any) -> None:
        pass

    def detach(self) -> None:
        pass


async def pend(buffer: PendingBuffer, key: str, size: int = 1, waited: float = 0.0) -> "asyncio.Task[bool]":
    client = cast(Client, FakeClient())
    task = asyncio.create_task(buffer.wait(UNQUEUED, "", size, client, False, key=key, waited=waited))
    await asyncio.sleep(0)
    return task


async def test_the_end_of_an_ejection_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blade_router.admission.pending_buffer.RECHECK_SECONDS", 0.01)
    endpoints = EndpointSet()
    endpoints.update([EndpointConfig(url="http://10.0.0.1:80")])
    (endpoint,) = endpoints.all
    endpoint.health.mark_up()
    endpoint.health.breaker.eject_for(time.monotonic(), 60)
    buffer = PendingBuffer(endpoints, HoldConfig(max_requests=9))
    task = await pend(buffer, "a")
    assert buffer.count() == 1
    endpoint.health.breaker.open_until = time.monotonic()
    assert await task
    assert buffer._recheck_timer is None


@pytest.mark.parametrize("bound", [{"max_requests": 3}, {"max_bytes": 3}])
async def test_the_key_with_most_pending_requests_is_evicted_when_it_is_full(bound: dict[str, int]) -> None:
    buffer = PendingBuffer(EndpointSet(), HoldConfig(**{"max_requests": 9, **bound}))
    greedy = [await pend(buffer, "greedy") for _ in range(4)]
    with pytest.raises(Refused, match="as many requests as allowed"):
        await greedy[3]
    modest = [await pend(buffer, "modest") for _ in range(2)]
    with pytest.raises(Refused):
        await greedy[2]
    with pytest.raises(Refused):
        await modest[1]
    assert not any(task.done() for task in (*greedy[:2], modest[0]))
    for task in (*greedy, *modest):
        task.cancel()
    await asyncio.gather(*greedy, *modest, return_exceptions=True)
    assert (buffer.count(), buffer._bytes, buffer._by_key.count) == (0, 0, 0)


async def test_nothing_is_evicted_for_what_would_not_fit_even_then() -> None:
    buffer = PendingBuffer(EndpointSet(), HoldConfig(max_requests=9, max_bytes=3))
    greedy = [await pend(buffer, "greedy") for _ in range(3)]
    with pytest.raises(Refused):
        await (await pend(buffer, "other", size=3))
    assert buffer.count() == 3
    for task in greedy:
        task.cancel()
    await asyncio.gather(*greedy, return_exceptions=True)
