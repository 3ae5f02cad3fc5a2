"""A new internal token: the pods of a service see it one after the other, and no request is refused meanwhile."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from router_support.engine import MockEngine
from router_support.serving import eventually, serving

from blade_protocol import headers, paths
from blade_protocol.internal_token import ROTATION_SECONDS
from blade_protocol.routing import EndpointConfig, HoldConfig, QueueConfig
from blade_router.config import internal_token
from blade_router.config.token_header import REREAD_SECONDS, TokenHeader
from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.endpoint_health import EndpointHealth
from blade_router.engines.blade import BladeEngine

REFUSAL = json.dumps({"error": {"message": "this engine serves its router alone", "code": "invalid_token"}}).encode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("one\n")
    return path


def test_who_presents_the_token_of_before_is_let_in_for_a_while(file: Path) -> None:
    now = 0.0
    token = TokenHeader(file, clock=lambda: now)
    assert token.accepts("one")
    assert not token.accepts("two")
    assert not token.accepts("")
    file.write_text("two\n")
    now += REREAD_SECONDS
    assert token.accepts("two")
    assert token.accepts("one"), "another router may see it later"
    now += ROTATION_SECONDS
    assert not token.accepts("one")
    assert token.accepts("two")
    assert not TokenHeader(None).accepts("")


def test_all_parts_of_a_router_know_of_the_same_change(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLADE_INTERNAL_TOKEN_FILE", str(file))
    assert internal_token.may_see_signals(internal_token.token_file(), "one", "10.0.0.7")
    token = internal_token.shared(file)
    file.write_text("two\n")
    token._reread_at = float("-inf")
    both = "x-blade-internal-token: two\r\nx-blade-internal-token: one\r\n"
    engine = BladeEngine(Endpoint(EndpointConfig(url="http://a:1")), token, lambda: None, lambda endpoint: None)
    assert engine._header() == both, "an engine may see it later: events and states, too, are read with both"
    assert internal_token.may_see_signals(internal_token.token_file(), "one", "10.0.0.7")
    assert internal_token.may_see_signals(internal_token.token_file(), "two", "10.0.0.7")


async def test_an_engine_that_refuses_the_token_gets_nothing_and_clients_notice_nothing() -> None:
    async with MockEngine("good") as good, MockEngine("bad", mode="status", status=401, error_body=REFUSAL) as bad:
        async with serving(good, bad) as router:
            for _ in range(8):
                response = await router.chat()
                assert (response.status_code, response.headers["x-blade-endpoint"]) == (200, "good")
            assert bad.received, "it was tried"
            assert await router.metric('blade_router_retries_total{reason="token"}') >= 1
            bad.mode = "ok"  # it has the new token, too
            await eventually(lambda: router.router.endpoints.usable_count() == 2)
            await good.kill()
            assert (await router.chat()).headers["x-blade-endpoint"] == "bad"


async def test_a_router_ahead_of_all_engines_holds_requests_until_they_follow() -> None:
    async with MockEngine("a", mode="status", status=401, error_body=REFUSAL) as engine:
        async with serving(engine) as router:
            router.router.request_queues.configure(QueueConfig(), HoldConfig(max_requests=10))
            before = len(engine.received)
            pending = asyncio.create_task(router.chat())
            await eventually(lambda: len(engine.received) >= before + 3)
            engine.mode = "ok"
            assert (await pending).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_goes_on_refusing_the_token_holds_requests_no_longer_than_the_limit(stream: bool) -> None:
    """Its health check passes, so they are sent again and again: all waits together count."""
    async with MockEngine("a", mode="status", status=401, error_body=REFUSAL) as engine, serving(engine) as router:
        hold = HoldConfig(max_requests=10, max_age=2.0, heartbeat=0.1)
        router.router.request_queues.configure(QueueConfig(), hold)
        async with asyncio.timeout(30):
            response = await router.chat(stream=stream)
        assert b'"hold_timeout"' in response.content
        assert response.status_code == (200 if stream else 503), "a stream's head went out with its first comment"
        assert len(engine.received) >= 2, "it was tried again"


@pytest.mark.interpreted
def test_an_engine_that_refuses_the_token_is_readmitted_later_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("blade_router.endpoints.endpoint_health.time", SimpleNamespace(monotonic=lambda: clock[0]))
    health = EndpointHealth("a")
    health.mark_up()
    seconds = []
    for _ in range(7):
        health.refuse_token()
        seconds.append(health.token_refused_until - clock[0])
        health.refuse_token()  # of another request that was sent before
        clock[0] += seconds[-1] / 2
        health.mark_up()
        assert health.draining, "the check needs no token"
        clock[0] += seconds[-1] / 2
        health.mark_up()
        assert not health.draining
    assert seconds == [0.25, 0.5, 1, 2, 4, 8, 8]
    health.record_success()
    assert health.token_refusals == 0


def test_an_engine_that_restarts_begins_anew() -> None:
    health = EndpointHealth("a")
    health.mark_up()
    health.refuse_token()
    health.mark_down("it is gone")
    health.mark_up()
    assert not health.draining


async def test_another_401_is_the_clients() -> None:
    async with MockEngine("a", mode="status", status=401) as engine, serving(engine) as router:
        assert (await router.chat()).status_code == 401


async def test_a_replica_that_has_not_seen_the_new_token_takes_the_old_one_beside_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLADE_INTERNAL_TOKEN_FILE", str(file))
    both = [(headers.INTERNAL_TOKEN, "two"), (headers.INTERNAL_TOKEN, "one")]
    async with MockEngine("a") as engine, serving(engine, peers=("http://127.0.0.1:1",)) as router:
        assert (await router.admin.post(paths.INTERNAL_QUOTAS, content=b"", headers=both)).status_code == 400
        assert (await router.admin.get(paths.INTERNAL_SIGNALS, headers=both)).status_code == 200
        for refused in (both[:1], []):
            assert (await router.admin.post(paths.INTERNAL_QUOTAS, content=b"", headers=refused)).status_code == 403
            assert (await router.admin.get(paths.INTERNAL_SIGNALS, headers=refused)).status_code == 403
