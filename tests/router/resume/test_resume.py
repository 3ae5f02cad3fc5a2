"""A stream whose engine dies is resumed by another replica, and the client does not notice."""

import json
from typing import Any

import httpx
import pytest
from router_support.engine import MockEngine, Mode
from router_support.serving import eventually, raw_post
from router_support.streams import BODY, Reading, config, error_of, over, replica, whole

from blade_protocol.resume import response_number, stream_key
from blade_protocol.routing import EndpointConfig, RouterConfig
from blade_router.admission import Admission

RESUMED = 'blade_router_resumes_total{outcome="resumed"}'


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize("events", range(1, 8))
async def test_the_stream_resumes_after_any_event(path: str, events: int) -> None:
    async with replica("a") as a, replica("b") as b, over(a, b) as router:
        async with Reading.of(router, a, b, path=path) as stream:
            await stream.more(stream.engine, events - 1)
            await stream.engine.kill()
            assert await stream.rest(stream.other()) == whole(a, named=path == "/v1/responses")
        (resumed,) = stream.other().resumed
        tags = {endpoint.name: endpoint.response_tag for endpoint in router.router.endpoints.all}
        assert await router.metric(RESUMED) == 1
        assert await router.metric('blade_router_requests_total{code="200"}') == 1
    assert resumed == {
        "path": path,
        "request": BODY,
        "request_id": "r1",
        "created": 5,
        "seed": 6,
        "prompt_digest": "same",
        "token_ids": [[index] for index in range(events)],
        **({"response_tag": tags[stream.engine.name], "owner": ["", ""]} if path == "/v1/responses" else {}),
    }


async def test_a_response_is_where_its_stream_ended() -> None:
    """Its id names the engine that began, which came back meanwhile and knows nothing of it."""
    async with replica("a") as a, replica("b") as b, over(a, b) as router:
        async with Reading.of(router, a, b, path="/v1/responses") as stream:
            await stream.more(stream.engine, 2)
            await stream.engine.kill()
            await stream.rest(stream.other())
        tags = {endpoint.name: endpoint.response_tag for endpoint in router.router.endpoints.all}
        response = f"resp_{tags[stream.engine.name]}_{response_number(stream_key('r1', 6, 'same'))}"
        before = len(stream.other().received)
        for _ in range(3):
            await router.client.get(f"/v1/responses/{response}")
        assert [each.target for each in stream.other().received[before:]] == [f"/v1/responses/{response}"] * 3
        moved = router.router.endpoints.moved_responses
        for number in range(5000):  # remembered within bounds
            moved.note(f"resp_{number}", "0" * 8)
        assert moved.tag_of(response) == ""
        assert moved.tag_of("resp_4999") == "0" * 8


async def test_a_second_and_a_third_death_are_survived_too() -> None:
    async with replica("a") as a, replica("b") as b, replica("c") as c, replica("d") as d, over(a, b, c, d) as router:
        async with Reading.of(router, a, b, c, d) as stream:
            dead = stream.engine
            left = [engine for engine in (a, b, c, d) if engine is not dead]
            for _ in range(3):
                await dead.kill()
                await eventually(lambda: any(engine.active for engine in left))
                dead = next(engine for engine in left if engine.active)
                left.remove(dead)
                await stream.more(dead, 2)
            assert await stream.rest(dead) == whole(a)
        assert await router.metric(RESUMED) == 3


async def test_a_replica_that_came_while_the_stream_ran_resumes_it() -> None:
    async with replica("a") as a, replica("b") as b, over(a) as router:
        async with Reading.of(router, a) as stream:
            router.router.apply(RouterConfig(endpoints=(config(a), config(b))))
            await eventually(lambda: router.router.endpoints.usable_count() == 2)
            await a.kill()
            assert await stream.rest(b) == whole(a)
        assert await router.metric(RESUMED) == 1


async def test_half_an_event_is_dropped_and_written_anew() -> None:
    async with replica("a") as a, replica("b") as b, over(a, b) as router:
        async with Reading.of(router, a, b) as stream:
            stream.engine.open.copy().pop()
            protocol = next(each for each in stream.engine.open if each.task and not each.task.done())
            half = stream.engine.event(1)[:20]
            protocol.transport.write(b"%x\r\n%b\r\n" % (len(half), half))
            await stream.engine.kill()
            assert await stream.rest(stream.other()) == whole(a)


async def test_events_without_their_ids_are_not_sent() -> None:
    """They could not be sent to another replica: it would write them again."""
    async with replica("a") as a, replica("b") as b, over(a, b) as router:
        async with Reading.of(router, a, b) as stream:
            protocol = next(each for each in stream.engine.open if each.task and not each.task.done())
            events = stream.engine.event(1) + stream.engine.event(2)
            protocol.transport.write(b"%x\r\n%b\r\n" % (len(events), events))
            await stream.engine.kill()
            assert await stream.rest(stream.other()) == whole(a)


async def test_an_engine_that_shuts_down_hands_its_streams_over() -> None:
    async with replica("a") as a, replica("b") as b, over(a, b) as router:
        a.mode = b.mode = "hand-over"
        async with Reading.of(router, a, b) as stream:
            stream.other().mode = "ok"
            assert await stream.rest(stream.engine, stream.other()) == whole(a)
        assert len(stream.other().resumed) == 1


async def test_an_engine_that_shuts_down_before_the_first_event_hands_nothing_over() -> None:
    async with replica("a", tokens=1) as a, replica("b", tokens=1) as b, over(a, b) as router:
        a.mode = "hand-over"
        for engine in (a, b):
            for _ in range(9):
                engine.gate.release()  # type: ignore[union-attr]
        for _ in range(4):
            assert (await router.client.post("/v1/chat/completions", json=BODY)).content == whole(a)
        assert a.received
        assert not b.resumed


@pytest.mark.parametrize("mode", ["status", "draining", "garbage"])
async def test_a_replica_that_fails_is_passed_over(mode: Mode) -> None:
    async with replica("a") as a, replica("b") as b, replica("c") as c, over(a, b, c) as router:
        async with Reading.of(router, a, b, c) as stream:
            bad = stream.other()
            good = stream.other(bad)
            bad.mode = mode
            await stream.engine.kill()
            assert await stream.rest(good, bad) == whole(a)
        assert len(good.resumed) == 1


@pytest.mark.parametrize("mode", ["reset", "reset-after-head"])
async def test_a_stream_that_loses_its_second_engine_at_once_gets_no_third(mode: Mode) -> None:
    """It may be what kills them."""
    async with replica("a") as a, replica("b") as b, replica("c") as c, over(a, b, c) as router:
        async with Reading.of(router, a, b, c) as stream:
            bad = stream.other()
            good = stream.other(bad)
            bad.mode = good.mode = mode
            await stream.engine.kill()
            assert error_of(await stream.rest(good, bad))["code"] == "engine_lost"
        assert len([each for each in good.received + bad.received if each.target == "/internal/resume"]) == 1
        assert await _outcome(router, "suspected") == 1


async def broken(router: Any, stream: Reading) -> dict[str, Any]:
    """Kill its engine; the error event it ends in."""
    await stream.engine.kill()
    content = await stream.rest(stream.other())
    assert content.startswith(stream.engine.event(0))
    return error_of(content)


async def test_another_prompt_ends_in_an_error_event() -> None:
    async with replica("a") as a, replica("b", digest="other") as b, over(a, b) as router:
        a.digest = "one"
        async with Reading.of(router, a, b) as stream:
            assert (await broken(router, stream))["code"] == "engine_lost"
        assert await router.metric('blade_router_resumes_total{outcome="refused"}') == 1


@pytest.mark.parametrize(
    "other",
    [{"revision": "r2"}, {"internal_url": ""}, {"engine": "vllm"}, {"draining": True}],
)
async def test_only_a_replica_of_the_same_kind_resumes(other: dict[str, Any]) -> None:
    async with replica("a") as a, replica("b") as b:
        usable = (a,) if other.get("draining") else (a, b)
        async with over(a, b, configs=(config(a), config(b, **other))) as router:
            async with Reading.of(router, *usable) as stream:
                await stream.engine.kill()
                assert error_of(await stream.rest(a, b))["code"] == "engine_lost"
            assert await _outcome(router, "resumed") == 0
        assert not a.resumed
        assert not b.resumed


async def _outcome(router: Any, name: str) -> float:
    return float(router.router.metrics.resumes[name])


@pytest.mark.parametrize("fields", [{"n": 2}, {"best_of": 2}])
async def test_ids_are_not_requested_in_vain(fields: dict[str, Any]) -> None:
    async with replica("a") as a, replica("b") as b, over(a, b) as router:
        async with Reading.of(router, a, b, **fields) as stream:
            assert stream.engine.received[-1].header("x-blade-stream-ids") == []
            assert (await broken(router, stream))["code"] == "engine_lost"
        assert await _outcome(router, "nobody") == 0


async def test_a_seed_is_sent_where_the_request_has_none() -> None:
    async with replica("a") as a, replica("b") as b, over(a, b) as router:
        seeds = []
        for fields in ({}, {}, {"seed": 3}):
            async with Reading.of(router, a, b, **fields) as stream:
                seeds.append(stream.engine.received[-1].header("x-blade-seed"))
                await stream.rest(stream.engine)
        assert seeds[2] == []
        assert seeds[0] != seeds[1]
        assert all(0 <= int(seed) < 2**63 for (seed,) in seeds[:2])


async def test_clients_cannot_request_ids_and_never_see_them() -> None:
    async with replica("a") as a, over(a, configs=(config(a, engine="vllm"),)) as router:
        a.gate = None
        headers = {"x-blade-stream-ids": "1", "x-blade-seed": "1"}
        response = await router.client.post("/v1/chat/completions", json=BODY, headers=headers)
        assert response.content == whole(a)
        assert a.received[-1].header("x-blade-stream-ids") == []
        assert a.received[-1].header("x-blade-seed") == []
    async with replica("a") as a, replica("b") as b, over(a, b) as router:
        a.gate = b.gate = None
        response = await router.client.post("/v1/chat/completions", json=BODY)
        assert response.content == whole(a)
        ours = {name for name in response.headers if name.startswith("x-blade-")}
        assert ours == {"x-blade-endpoint", "x-blade-route-reason"}


async def test_streams_of_other_engines_pass_untouched() -> None:
    async with MockEngine("a", tokens=4) as a, MockEngine("b", tokens=4) as b, over(a, b) as router:
        async with httpx.AsyncClient(base_url=a.url, trust_env=False) as client:
            direct = (await client.post("/v1/chat/completions", json=BODY)).content
        through = (await router.client.post("/v1/chat/completions", json=BODY)).content
        assert through.replace(b"b-", b"a-") == direct


async def test_the_engine_stops_when_the_client_leaves_during_the_rest() -> None:
    async with replica("a") as a, replica("b") as b, over(a, b) as router:
        for engine in (a, b):
            engine.gate.release()  # type: ignore[union-attr]
        reader, writer = await raw_post(router.port, BODY)
        await reader.readuntil(b"content")
        first, other = (a, b) if a.active else (b, a)
        await other.gate.acquire()  # type: ignore[union-attr]
        await first.kill()
        await eventually(lambda: other.active == 1, "the other one goes on")
        writer.close()
        await eventually(lambda: other.active == 0, "it is stopped")
        assert other.aborted == 1
        await eventually(lambda: all(endpoint.in_flight == 0 for endpoint in router.router.endpoints.all))


async def test_the_internal_token_is_sent_and_after_a_change_the_one_before_too(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    monkeypatch.setenv("BLADE_INTERNAL_TOKEN_FILE", str(secret))
    monkeypatch.setattr("blade_router.config.token_header.REREAD_SECONDS", 0.0)
    async with replica("a") as a, replica("b") as b, over(a, b) as router:
        async with Reading.of(router, a, b) as stream:
            secret.write_text("n3w\n")
            await stream.engine.kill()
            assert await stream.rest(stream.other()) == whole(a)
        resumes = [each for each in stream.other().received if each.target == "/internal/resume"]
        assert resumes[0].header("x-blade-internal-token") == ["n3w", "s3cret"]
        assert json.loads(resumes[0].body)["request"] == BODY


@pytest.mark.interpreted
async def test_usage_is_that_of_the_whole_stream() -> None:
    """Counted once, from the last chunk, whoever wrote it."""
    async with replica("a") as a, replica("b") as b, over(a, b) as router:
        closed: list[Any] = []

        class Closing(Admission):
            def close(self, usage: Any) -> None:
                closed.append(usage)

        class Admissions:
            async def admit(self, *_: Any) -> Admission:
                return Closing()

            async def wait_for_endpoint(self, *_: Any) -> bool:
                return False

        router.router.proxy.admission_control = Admissions()
        for engine in (a, b):
            engine.usage = {"prompt_tokens": 3, "completion_tokens": 8}
        async with Reading.of(router, a, b) as stream:
            await stream.engine.kill()
            await stream.rest(stream.other())
        (usage,) = closed
        assert (usage.prompt_tokens, usage.completion_tokens) == (3, 8)


def test_endpoint_configurations_name_their_internal_port() -> None:
    assert EndpointConfig(url="http://h:1").internal_url == ""
