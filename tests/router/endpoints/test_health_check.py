"""Unhealthy endpoints get no requests until they recover; draining ones finish what they have."""

import asyncio
import errno

import pytest
from router_support.engine import MockEngine
from router_support.serving import Running, eventually, question, raw_post, serving

from blade_protocol.routing import EndpointConfig
from blade_router.endpoints.breaker import MAX_EJECTION_SECONDS, ejection_seconds
from blade_router.endpoints.endpoint import Endpoint
from blade_router.http.upstream.errors import ConnectFailed, ConnectionLost


def by_name(router: Running, name: str) -> Endpoint:
    return next(endpoint for endpoint in router.router.endpoints.all if endpoint.name == name)


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 0), (2, 0), (3, 0.5), (4, 1), (5, 2), (8, 16), (9, 30), (10_000, 30)]
)
def test_ejection_doubles_up_to_a_limit(failures: int, seconds: float) -> None:
    assert ejection_seconds(failures) == seconds <= MAX_EJECTION_SECONDS


async def test_third_failure_in_a_row_ejects() -> None:
    endpoint = Endpoint(EndpointConfig(url="http://10.0.0.1:80"))
    endpoint.health.mark_up()
    for _ in range(2):
        endpoint.health.record_failure("boom", ConnectionLost("boom"))
        endpoint.health.record_failure("it answered 500")
        endpoint.health.record_success()
    assert endpoint.health.ejected_until == 0.0, "successes in between start the count anew"
    for _ in range(3):
        endpoint.health.record_failure("boom", ConnectionLost("boom"))
    until = endpoint.health.ejected_until
    assert not endpoint.usable(until - 0.01)
    assert endpoint.usable(until)
    endpoint.health.record_failure("boom", ConnectionLost("boom"))
    assert (endpoint.health.failures, endpoint.health.ejected_until) == (3, until), (
        "one event, however many requests it hit"
    )


@pytest.mark.parametrize("code", [errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH])
async def test_endpoint_that_is_not_there_is_down_until_the_check_passes(code: int) -> None:
    endpoint = Endpoint(EndpointConfig(url="http://10.0.0.1:80"))
    endpoint.health.mark_up()
    endpoint.health.record_failure("nobody there", ConnectFailed("nobody there", code))
    assert not endpoint.usable(float("inf"))
    endpoint.health.mark_up()
    assert endpoint.usable(0.0)


async def test_engine_that_returns_500_is_ejected_and_tried_less() -> None:
    async with MockEngine("good") as good, MockEngine("bad", mode="status") as bad, serving(good, bad) as router:
        while not by_name(router, "bad").health.ejected_until:
            assert (await router.chat()).status_code == 200
        attempts = len(bad.received)
        assert attempts == 3
        bad.mode = "ok"
        await eventually(lambda: router.router.endpoints.usable_count() == 2)  # the ejection runs out
        while len(bad.received) == attempts:
            assert (await router.chat()).status_code == 200
        assert by_name(router, "bad").health.failures == 0


async def test_killed_engine_recovers_by_itself() -> None:
    async with MockEngine("a") as a, MockEngine("b") as b, serving(a, b) as router:
        await b.kill()
        for _ in range(6):
            assert (await router.chat()).status_code == 200
        assert by_name(router, "b").health.up is False
        assert await router.metric('blade_router_endpoint_up{endpoint="b"}') == 0
        await b.start()
        await eventually(lambda: by_name(router, "b").health.up)
        while not b.received:
            assert (await router.chat()).status_code == 200


async def test_active_check_detects_a_dead_engine_without_requests() -> None:
    async with MockEngine("a") as a, serving(a, health_interval=0.05) as router:
        await a.kill()
        await eventually(lambda: by_name(router, "a").health.up is False)
        await a.start()
        await eventually(lambda: by_name(router, "a").health.up)


async def test_unready_engine_gets_nothing() -> None:
    async with MockEngine("a") as a, MockEngine("b", health=503) as b:
        async with serving(a, b, wait=False) as router:
            await eventually(lambda: by_name(router, "a").health.up and by_name(router, "b").health.up is False)
            for _ in range(6):
                await router.chat()
            assert b.received == []
            b.health = 200
            await eventually(lambda: by_name(router, "b").health.up)


async def test_panic_mode_when_every_endpoint_is_unhealthy() -> None:
    """A wrong health check must not take a working service down."""
    async with (
        MockEngine("a", health=500) as a,
        serving(a, wait=False, policy="least-request", debug_routes=True) as router,
    ):
        await eventually(lambda: by_name(router, "a").health.up is False)
        response = await router.chat()
        assert response.status_code == 200
        assert response.headers["x-blade-route-reason"] == "least-request panic"


async def test_engine_that_reports_draining_gets_nothing_new() -> None:
    async with MockEngine("a") as a, MockEngine("b") as b, serving(a, b, health_interval=60) as router:
        b.mode = "draining"
        for _ in range(8):
            assert (await router.chat()).status_code == 200
        assert len(b.received) == 1, "one report is enough"
        endpoint = by_name(router, "b")
        assert endpoint.health.failures == 0, "draining is no failure"
        assert (await router.status())["endpoints"]["b"]["draining"] is True
        probes = b.probes
        await eventually(lambda: b.probes > probes)  # a check that still sees it drain is not the last for long
        b.mode = "ok"
        await eventually(lambda: endpoint.admits)


async def test_draining_endpoint_finishes_what_it_has() -> None:
    gate = asyncio.Semaphore(1)
    async with MockEngine("a", gate=gate, tokens=2) as a, serving(a) as router:
        reader, writer = await raw_post(router.port, question(stream=True))
        await reader.readuntil(a.event(0))
        config = EndpointConfig(url=a.url, name="a", draining=True)
        router.router.endpoints.update([config])
        response = await router.chat()
        assert response.status_code == 503, "never chosen, not even when there is no other"
        assert "draining" in response.json()["error"]["message"]
        gate.release()
        await reader.readuntil(b"[DONE]")
        writer.close()


async def test_only_draining_engines_return_503_with_retry_after() -> None:
    async with MockEngine("a", mode="draining") as a, serving(a, wait=False) as router:
        await eventually(lambda: by_name(router, "a").health.draining)
        response = await router.chat()
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert a.received == []
