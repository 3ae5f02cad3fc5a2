"""``/debug/route``: what would be chosen, why, and that asking changes nothing."""

import math
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from router_support.engine import MockEngine
from router_support.serving import Running, question, serving

from blade_protocol import environment
from blade_protocol.routing import PolicyName
from blade_router.config import POLICIES

LONG = {"model": "mock", "messages": [{"role": "user", "content": "long " * 1000}]}
FORWARDED = {"x-forwarded-for": "10.1.2.3"}


async def ask(router: Running, body: dict[str, Any] = LONG, **extra: Any) -> httpx.Response:
    return await router.client.post("/debug/route", json=body, **extra)


async def test_it_shows_what_the_next_request_will_do() -> None:
    async with MockEngine("a") as a, MockEngine("b") as b, serving(a, b) as router:
        first = await router.client.post("/v1/chat/completions", json=LONG)
        home = first.headers["x-blade-endpoint"]
        shown = (await ask(router)).json()
        assert shown["policy"] == "auto"
        assert shown["endpoint"] == home
        assert shown["prompt_tokens"] == 1251
        by_name = {each["name"]: each for each in shown["endpoints"]}
        other = "b" if home == "a" else "a"
        assert by_name[home]["scores"]["cached_blocks"] == 19
        assert by_name[home]["scores"]["score"] < by_name[other]["scores"]["score"]
        assert [by_name[home]["chosen"], by_name[other]["chosen"]] == [True, False]
        second = await router.client.post("/v1/chat/completions", json=LONG)
        assert second.headers["x-blade-endpoint"] == home
        assert second.headers["x-blade-route-reason"] == shown["reason"]


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in ("external", "random", "power-of-two")])
async def test_asking_changes_nothing(policy: PolicyName) -> None:
    async with MockEngine("a") as a, MockEngine("b") as b, MockEngine("c") as c:
        async with serving(a, b, c, policy=policy) as router:
            await router.client.post("/v1/chat/completions", json=LONG)
            answers = [(await ask(router)).json() for _ in range(3)]
            assert answers[0] == answers[1] == answers[2]
            real = await router.client.post("/v1/chat/completions", json=LONG)
            assert real.headers["x-blade-endpoint"] == answers[0]["endpoint"]
        assert len(a.received) + len(b.received) + len(c.received) == 2


async def test_it_says_why_others_are_out() -> None:
    engines = [MockEngine(name) for name in "abcdef"]
    async with engines[0] as a, engines[1] as b, engines[2] as c, engines[3] as d, engines[4] as e:
        async with serving(a, b, c, d, e) as router:
            known = {endpoint.name: endpoint for endpoint in router.router.endpoints.all}
            known["b"].draining = True
            known["c"].up = False
            known["d"].breaker.closed, known["d"].breaker.open_until = False, time.monotonic() + 1000
            known["e"].service = "other"
            shown = (await ask(router)).json()
            assert shown["endpoint"] == "a"
            out = {each["name"]: each["excluded"] for each in shown["endpoints"]}
            assert out["a"] is None
            assert out["b"] == "it is draining"
            assert out["c"] == "its health check fails"
            assert out["d"].startswith("ejected for ")
            assert out["e"] == "it serves other"
            assert (await ask(router, params={"service": "other"})).json()["endpoint"] == "e"
            known["a"].draining = known["d"].draining = known["c"].draining = True
            nobody = (await ask(router)).json()
            assert nobody["endpoint"] is None
            assert nobody["reason"] == "no endpoint may be chosen"


async def test_a_body_that_is_no_json_is_refused() -> None:
    async with MockEngine() as engine, serving(engine) as router:
        answer = await router.client.post("/debug/route", content=b"{")
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "invalid_json"


async def test_not_everybody_may_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    async with MockEngine() as engine, serving(engine) as router:
        assert (await ask(router)).status_code == 200
        refused = await ask(router, headers=FORWARDED)
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "debug_refused"
        monkeypatch.setenv(environment.INTERNAL_TOKEN_FILE, str(token))
        given = {"x-blade-internal-token": "secret"}
        assert (await ask(router, headers={**FORWARDED, **given})).status_code == 200
        assert (await ask(router, headers={"x-blade-internal-token": "wrong"})).status_code == 403
        token.unlink()
        assert (await ask(router, headers=given)).status_code == 403


async def test_everybody_may_where_it_is_switched_on() -> None:
    async with MockEngine() as engine, serving(engine, debug_routes=True) as router:
        answer = await ask(router, question(), headers=FORWARDED)
        assert answer.status_code == 200
        assert answer.json()["endpoint"] == "engine"


async def test_what_is_no_finite_number_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("math.dist", lambda endpoint, request: math.inf if endpoint.name == "a" else 1.0)
    async with MockEngine("a") as a, MockEngine("b") as b:
        async with serving(a, b, policy="external", cost="math:dist") as router:
            shown = (await ask(router)).json()
            assert {each["name"]: each["scores"] for each in shown["endpoints"]} == {
                "a": {"cost": None},
                "b": {"cost": 1.0},
            }


async def test_it_asks_only_who_has_the_adapter() -> None:
    async with MockEngine("a") as a, MockEngine("b") as b, serving(a, b) as router:
        known = {endpoint.name: endpoint for endpoint in router.router.endpoints.all}
        known["a"].adapters = frozenset({"poet"})
        shown = (await ask(router, LONG | {"model": "poet"})).json()
        assert shown["endpoint"] == "a"
        excluded = {each["name"]: each["excluded"] for each in shown["endpoints"]}
        assert excluded == {"a": None, "b": "it has not loaded the adapter"}
