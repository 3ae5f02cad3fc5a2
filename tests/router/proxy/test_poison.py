"""A request that kills the engines it reaches: two of them, and then nobody until its quarantine is over."""

import asyncio

import httpx
import msgspec
import pytest
from router_support.engine import MockEngine
from router_support.poison import POISON, code, crashes, fleet
from router_support.serving import Running, eventually, question, serving
from router_support.streams import config, error_of, over, replica

from blade_protocol.openai import ENGINE_DEAD, ErrorBody, ErrorDetail
from blade_router.admission import Admission, AdmitAll
from blade_router.endpoints import quarantine
from blade_router.endpoints.breaker import CONSECUTIVE_FAILURES
from blade_router.http.client import Client
from blade_router.request.request import ClientRequest


async def send(router: Running, text: str = "poison", *, stream: bool = False) -> httpx.Response:
    body = question(stream=stream) | {"messages": [{"role": "user", "content": text}]}
    return await router.client.post("/v1/chat/completions", json=body)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_poisonous_request_is_sent_to_two_engines_and_then_to_none(stream: bool) -> None:
    async with fleet() as engines, serving(*engines, max_tries=4) as router:
        assert code(await send(router, stream=stream)) == (502, "engine_lost")
        assert crashes(engines) == 2
        for _ in range(8):
            again = await send(router, stream=stream)
            assert code(again) == (503, "quarantined")
            assert 1 <= int(again.headers["retry-after"]) <= quarantine.QUARANTINE_SECONDS
        assert crashes(engines) == 2
        assert await router.metric('blade_router_refused_requests_total{reason="quarantined"}') == 8
        assert (await send(router, "hello")).status_code == 200, "only this request is refused"


async def test_repeats_eject_nobody() -> None:
    """Not even where each is another request, so that none is in quarantine."""
    async with fleet() as engines, serving(*engines, policy="round-robin") as router:
        for number in range(6 * CONSECUTIVE_FAILURES):
            assert code(await send(router, f"poison {number}")) == (502, "engine_lost")
        endpoints = router.router.endpoints.all
        assert [endpoint.health.failures for endpoint in endpoints] == [0] * 4
        assert router.router.endpoints.usable_count() == 4
        assert crashes(engines) == 2 * 6 * CONSECUTIVE_FAILURES


async def test_many_at_the_same_time_reach_no_more_engines_than_they_were_on() -> None:
    gate = asyncio.Semaphore(0)
    async with fleet(8, gate=gate) as engines, serving(*engines, policy="round-robin") as router:
        first = [asyncio.create_task(send(router)) for _ in range(3)]
        await eventually(lambda: sum(engine.active for engine in engines) == 3)
        gate.release()  # one of them crashes its engine
        await eventually(lambda: crashes(engines) == 1)
        late = [asyncio.create_task(send(router)) for _ in range(8)]
        for _ in range(50):
            gate.release()
        answered = await asyncio.gather(*first, *late)
        assert {code(each) for each in answered} <= {(502, "engine_lost"), (503, "quarantined")}
        assert crashes(engines) <= 4, "the three it was on, and one more"
        assert [endpoint.health.failures for endpoint in router.router.endpoints.all] == [0] * 8


async def test_after_its_quarantine_it_gets_one_engine_and_a_longer_quarantine() -> None:
    async with fleet() as engines, serving(*engines) as router:
        now = 0.0
        cell = router.router.proxy.quarantine
        cell._clock = lambda: now
        assert code(await send(router)) == (502, "engine_lost")
        for seconds in (60, 120, 240, 480, 960, 960):
            now += seconds - 1
            assert code(await send(router)) == (503, "quarantined")
            before = crashes(engines)
            now += 1
            assert code(await send(router)) == (502, "engine_lost")
            assert crashes(engines) == before + 1
        now += 960
        for engine in engines:
            engine.poison = b""
        assert (await send(router)).status_code == 200
        assert len(cell) == 0, "nothing is left of it"


async def test_a_victim_is_served_and_the_engine_that_was_lost_is_to_blame() -> None:
    gate = asyncio.Semaphore(0)
    async with (
        MockEngine("a", gate=gate) as a,
        MockEngine("b", gate=gate) as b,
        serving(a, b, policy="least-request") as router,
    ):
        pending = [asyncio.create_task(send(router, "hello")) for _ in range(6)]
        await eventually(lambda: a.active == b.active == 3)
        a.crash()
        await eventually(lambda: not a.active)
        for _ in range(20):
            gate.release()
        assert {(await each).status_code for each in pending} == {200}
        blamed = next(each for each in router.router.endpoints.all if each.name == "a")
        assert blamed.health.failures == 3 or not blamed.health.breaker.closed
        assert len(router.router.proxy.quarantine) == 0


@pytest.mark.parametrize("after", [1, 3])
async def test_a_stream_that_kills_engines_in_its_middle_reaches_two(after: int) -> None:
    async with fleet(resumable=True, poison_after=after, tokens=6) as engines:
        async with over(*engines, configs=tuple(config(each) for each in engines)) as router:
            answered = await send(router, stream=True)
            assert error_of(answered.content)["code"] == "engine_lost"
            assert answered.content.count(b"\n\n") == after + 1
            assert crashes(engines) == 2
            assert code(await send(router, stream=True)) == (503, "quarantined")
            assert crashes(engines) == 2
            assert [endpoint.health.failures for endpoint in router.router.endpoints.all] == [0] * 4
            assert await router.metric('blade_router_resumes_total{outcome="suspected"}') == 1


@pytest.mark.interpreted
async def test_streams_beside_a_poisonous_request_survive_both_crashes() -> None:
    """The crash of the second engine finds them resumed, but without an event: the poisonous one is more suspect."""
    async with replica("a") as a, replica("b") as b, replica("c") as c, over(a, b, c) as router:
        a.poison = b.poison = c.poison = POISON
        engines = {"a": a, "b": b, "c": c}
        relayed: list[ClientRequest] = []

        class Remember(AdmitAll):
            async def admit(self, request: ClientRequest, client: Client) -> Admission:
                relayed.append(request)
                return Admission()

        router.router.proxy.admission_control = Remember()
        bodies = [question(stream=True) | {"user": f"u{number}"} for number in range(6)]

        async def read(body: dict[str, object]) -> bytes:
            return (await router.client.post("/v1/chat/completions", json=body)).content

        streams = [asyncio.create_task(read(body)) for body in bodies]
        await eventually(lambda: sum(each.active for each in engines.values()) == 6)
        for engine in engines.values():
            for _ in range(engine.active):
                engine.gate.release()  # type: ignore[union-attr]
        await eventually(lambda: sum(each.events for each in relayed) == 6, "each has an event")
        poisoned = asyncio.create_task(send(router))
        await eventually(lambda: sum(each.active for each in engines.values()) == 7)
        for _ in range(200):
            for engine in engines.values():
                engine.gate.release()  # type: ignore[union-attr]
            await asyncio.sleep(0)
        assert code(await poisoned) == (502, "engine_lost")
        contents = await asyncio.gather(*streams)
        assert all(content.endswith(b"data: [DONE]\n\n") for content in contents)
        assert all(content == contents[0] for content in contents)


async def test_an_engine_process_that_dies_under_its_server_counts_as_lost() -> None:
    """Its server answers, and says so."""
    error = ErrorDetail(message="the engine failed: out of memory", type="server_error", code=ENGINE_DEAD)
    async with fleet(3) as engines:
        for engine in engines:
            engine.poison = b""
            engine.mode = "status"
            engine.status = 503
            engine.error_body = msgspec.json.encode(ErrorBody(error=error))
        async with serving(*engines, max_tries=3) as router:
            assert code(await send(router)) == (502, "engine_lost")
            assert sum(len(engine.received) for engine in engines) == 2
            assert code(await send(router)) == (503, "quarantined")


async def test_a_client_that_leaves_gives_up_its_turn() -> None:
    gate = asyncio.Semaphore(0)
    async with fleet(2, gate=gate) as engines, serving(*engines) as router:
        cell = router.router.proxy.quarantine
        first = asyncio.create_task(send(router))
        await eventually(lambda: sum(engine.active for engine in engines) == 1)
        gate.release()
        await eventually(lambda: crashes(engines) == 1 and sum(engine.active for engine in engines) == 1)
        second = asyncio.create_task(send(router))
        await eventually(lambda: cell._verdicts, "it waits for the verdict")
        first.cancel()
        await eventually(lambda: not cell._verdicts and sum(engine.active for engine in engines) == 1)
        second.cancel()
        await eventually(lambda: router.router.metrics.in_flight == 0)
        assert [case.on_trial for case in cell._cases.values()] == [None]
