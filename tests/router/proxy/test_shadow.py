"""Shadow traffic: what clients get is the same whatever becomes of copies, and what is counted of them."""

import asyncio
import json

import pytest
from router_support.engine import MockEngine, Mode
from router_support.serving import eventually, question, raw_post
from router_support.shadowing import shadowed

from blade_protocol.routing import ShadowConfig

BAD: tuple[Mode, ...] = ("status", "busy", "reset", "reset-after-head", "break", "garbage")


class Answering(MockEngine):
    """Its streams say why they end."""

    def event(self, index: int) -> bytes:
        if index < self.tokens - 1:
            return super().event(index)
        choice = {"index": 0, "delta": {}, "finish_reason": "length"}
        return b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_copy_is_what_the_engine_was_sent(stream: bool) -> None:
    async with shadowed() as pair:
        await pair.ask(stream, temperature=0)
        await pair.settled()
        [original], [copy] = pair.old.received, pair.new.received
        assert (copy.method, copy.target, copy.body) == (original.method, original.target, original.body)
        assert copy.header("x-request-id") == [original.header("x-request-id")[0] + "-shadow"]
        assert copy.header("content-type") == original.header("content-type")


async def test_equal_answers_are_counted_for_both() -> None:
    async with shadowed(Answering("same", tokens=6), Answering("same", tokens=6)) as pair:
        for number in range(20):
            await pair.ask(number % 2 == 0, temperature=0)
        found = await pair.settled()
        assert (found.revision, found.sent, found.dropped) == ("new", 20, {})
        assert (found.copies.requests, found.originals.requests) == (20, 20)
        assert (found.copies.errors, found.originals.errors) == (0, 0)
        assert found.copies.lengths == found.originals.lengths == (10, 10, 0, 0, 0, 0, 0, 0)
        assert found.copies.finish_reasons == found.originals.finish_reasons == {"length": 10, "stop": 10}
        assert (found.same, found.different) == (20, 0)
        assert (await pair.signals()).shadows == (found,)


async def test_other_texts_of_greedy_requests_are_counted_and_of_sampled_ones_are_not() -> None:
    async with shadowed(MockEngine("old"), MockEngine("new")) as pair:
        for stream in (False, True):
            await pair.ask(stream, temperature=0)
            await pair.ask(stream, temperature=0.7)
            await pair.ask(stream)
            await pair.ask(stream, temperature=0, n=2)
        found = await pair.settled()
        assert (found.copies.requests, found.same, found.different) == (8, 0, 2)
        metric = pair.running.metric
        assert await metric('blade_router_shadow_texts_total{outcome="different"}') == 2
        assert await metric('blade_router_shadow_requests_total{outcome="sent"}') == 8
        assert await metric('blade_router_shadow_requests_total{outcome="compared"}') == 8


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", BAD)
async def test_a_revision_that_fails_changes_no_answer(mode: Mode, stream: bool) -> None:
    async with shadowed(new=MockEngine("same", mode=mode)) as pair:
        answers = {await pair.ask(stream) for _ in range(4)}
        assert len(answers) == (1 if stream else 4), "those of the mock have numbers"
        found = await pair.settled()
        assert (found.copies.errors, found.originals.errors, found.copies.requests) == (4, 0, 4)
        [endpoint] = [each for each in pair.running.router.endpoints.all if each.revision == "new"]
        assert (endpoint.health.failures, endpoint.health.breaker.closed, endpoint.health.draining) == (0, True, False)
        metrics = pair.running.router.metrics
        assert metrics.requests == {200: 4}
        assert (sum(metrics.retries.values()), metrics.arrivals) == (0, 4)


async def test_an_engine_that_hangs_delays_nothing_and_holds_no_place() -> None:
    async with shadowed(new=MockEngine("same", mode="hang")) as pair:
        for _ in range(4):
            await pair.ask(stream=True)
        assert pair.shadows.running == 4
        router = pair.running.router
        assert [endpoint.in_flight for endpoint in router.endpoints.all] == [0, 0]
        assert (router.metrics.in_flight, router.metrics.ended) == (0, 4)
        for copy in list(pair.shadows._running):
            copy._too_late()
        found = await pair.settled()
        assert (found.copies.errors, found.originals.errors) == (4, 0), "it fails its requests"
        await eventually(lambda: pair.new.active == 0)


async def test_copies_do_not_keep_a_router_from_ending() -> None:
    new = MockEngine("same", mode="hang")
    async with asyncio.timeout(20):
        async with shadowed(new=new, drain_timeout=15) as pair:
            await pair.ask()
            await eventually(lambda: new.active == 1)
            shadows = pair.shadows
        assert shadows.running == 0
        await eventually(lambda: new.active == 0)


async def test_a_client_that_leaves_ends_its_copy() -> None:
    gate = asyncio.Semaphore(0)
    async with shadowed(MockEngine("same", gate=gate), MockEngine("same", gate=gate)) as pair:
        _, writer = await raw_post(pair.running.port, question(stream=True))
        await eventually(lambda: pair.old.active == pair.new.active == 1)
        writer.close()
        found = await pair.settled()
        assert (found.copies.requests, found.dropped) == (0, {"original": 1})
        await eventually(lambda: pair.new.aborted == 1)


async def test_what_the_stable_revision_fails_counts_for_it() -> None:
    async with shadowed(old=MockEngine("same", mode="status")) as pair:
        response = await pair.running.chat()
        assert response.status_code in (200, 500)
        found = await pair.settled()
        assert (found.originals.requests, found.originals.errors, found.copies.errors) == (1, 1, 0)


async def test_a_request_that_only_the_new_revision_refuses_is_an_error_of_it() -> None:
    async with shadowed(new=MockEngine("same", mode="status", status=400)) as pair:
        await pair.ask()
        found = await pair.settled()
        assert (found.copies.errors, found.originals.errors) == (1, 0)
        pair.old.mode, pair.old.status = "status", 400
        await pair.ask(status=400)
        found = await pair.settled()
        assert (found.copies.errors, found.dropped) == (1, {"original": 1}), "the client's"


@pytest.mark.parametrize(("mode", "status"), [("draining", 503), ("status", 429), ("status", 401)])
async def test_an_engine_that_leaves_or_is_full_says_nothing(mode: Mode, status: int) -> None:
    async with shadowed() as pair:
        pair.new.mode, pair.new.status = mode, status
        await pair.ask()
        found = await pair.settled()
        assert (found.copies.requests, found.dropped) == (0, {"refused": 1})


async def test_a_revision_without_an_engine_gets_nothing() -> None:
    async with shadowed() as pair:
        await pair.new.kill()
        await pair.ask()
        assert (await pair.settled()).copies.requests == 0
        pair.apply(endpoints=pair.config.endpoints[:1])
        await pair.ask()
        found = await pair.settled()
        assert found.dropped["no_engine"] >= 1


async def test_nothing_is_copied_where_nothing_is_configured() -> None:
    async with shadowed() as pair:
        pair.apply(shadow=None)
        router = pair.running.router
        assert (router.proxy.shadows, router.metrics.shadow) == (None, None)
        for stream in (False, True):
            await pair.ask(stream, temperature=0)
        assert pair.new.received == []
        assert (await pair.signals()).shadows == ()
        pair.apply(canary={})
        await pair.running.chat()
        assert sum(len(engine.received) for engine in (pair.old, pair.new)) == 3


async def test_only_requests_for_texts_are_copied() -> None:
    async with shadowed() as pair:
        client = pair.running.client
        await client.post("/v1/embeddings", json={"model": "mock", "input": "x"})
        await client.post("/v1/responses", json={"model": "mock", "input": "x"})
        await client.get("/v1/models/mock")
        await client.post("/v1/completions", json={"model": "mock", "prompt": "x"})
        found = await pair.settled()
        assert (found.sent, [each.target for each in pair.new.received]) == (1, ["/v1/completions"])


async def test_a_share_of_the_requests_is_copied() -> None:
    async with shadowed(share=30) as pair:
        for _ in range(200):
            await pair.ask()
        found = await pair.settled()
        assert 30 <= found.sent <= 90
        assert len(pair.old.received) == 200


async def test_counts_go_on_with_another_share_and_begin_anew_with_another_revision() -> None:
    async with shadowed() as pair:
        await pair.ask()
        await pair.settled()
        pair.apply(shadow=ShadowConfig(revision="new", share=0.0))
        await pair.ask()
        assert (pair.found.sent, pair.found.copies.requests) == (1, 1)
        pair.apply(shadow=ShadowConfig(revision="newer", share=100.0))
        assert (pair.found.revision, pair.found.sent) == ("newer", 0)
        assert await pair.running.metric('blade_router_shadow_requests_total{outcome="sent"}') == 1


async def test_a_configuration_without_copies_ends_those_under_way() -> None:
    async with shadowed(new=MockEngine("same", mode="hang")) as pair:
        await pair.ask()
        shadows = pair.shadows
        await eventually(lambda: pair.new.active == 1)
        pair.apply(shadow=None)
        await eventually(lambda: shadows.running == 0 and pair.new.active == 0)
        assert shadows.counts.signals().copies.requests == 0
