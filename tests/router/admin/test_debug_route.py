"""``/debug/route``: the choice, its explanation, and that a dry run changes nothing."""

import json
import math
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from router_support.engine import MockEngine
from router_support.keys import BEARER, content, key, write
from router_support.serving import Running, eventually, question, serving

from blade_protocol import environment
from blade_protocol.routing import PolicyName
from blade_router.config.parsing import POLICIES
from blade_router.endpoints.endpoint import Endpoint

LONG = {"model": "mock", "messages": [{"role": "user", "content": "long " * 1000}]}
FORWARDED = {"x-forwarded-for": "10.1.2.3"}


async def debug_route(router: Running, body: dict[str, Any] = LONG, **extra: Any) -> httpx.Response:
    return await router.admin.post("/debug/route", json=body, **extra)


async def test_it_shows_what_the_next_request_will_do() -> None:
    async with MockEngine("a") as a, MockEngine("b") as b, serving(a, b, debug_routes=True) as router:
        first = await router.client.post("/v1/chat/completions", json=LONG)
        home = first.headers["x-blade-endpoint"]
        shown = (await debug_route(router)).json()
        assert shown["policy"] == "auto"
        assert shown["endpoint"] == home
        assert shown["prompt_tokens"] == 1252
        by_name = {each["name"]: each for each in shown["endpoints"]}
        other = "b" if home == "a" else "a"
        assert by_name[home]["scores"]["cached_blocks"] == 19
        assert by_name[home]["scores"]["score"] < by_name[other]["scores"]["score"]
        assert [by_name[home]["chosen"], by_name[other]["chosen"]] == [True, False]
        second = await router.client.post("/v1/chat/completions", json=LONG)
        assert second.headers["x-blade-endpoint"] == home
        assert second.headers["x-blade-route-reason"] == shown["reason"]


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in ("external", "random", "power-of-two")])
async def test_a_dry_run_changes_nothing(policy: PolicyName) -> None:
    async with MockEngine("a") as a, MockEngine("b") as b, MockEngine("c") as c:
        async with serving(a, b, c, policy=policy) as router:
            await router.client.post("/v1/chat/completions", json=LONG)
            responses = [(await debug_route(router)).json() for _ in range(3)]
            assert responses[0] == responses[1] == responses[2]
            real = await router.client.post("/v1/chat/completions", json=LONG)
            assert real.headers["x-blade-endpoint"] == responses[0]["endpoint"]
        assert len(a.received) + len(b.received) + len(c.received) == 2


def reconfigure(endpoint: Endpoint, **changes: object) -> None:
    endpoint.configure(msgspec.structs.replace(endpoint.config, **changes))


async def test_it_shows_why_other_endpoints_are_excluded() -> None:
    engines = [MockEngine(name) for name in "abcdef"]
    async with engines[0] as a, engines[1] as b, engines[2] as c, engines[3] as d, engines[4] as e:
        async with serving(a, b, c, d, e) as router:
            known = {endpoint.name: endpoint for endpoint in router.router.endpoints.all}
            reconfigure(known["b"], draining=True)
            c.health = 503
            known["c"].health.check_now()
            await eventually(lambda: known["c"].health.up is False)
            known["d"].health.breaker.closed, known["d"].health.breaker.open_until = False, time.monotonic() + 1000
            reconfigure(known["e"], service="other")
            shown = (await debug_route(router)).json()
            assert shown["endpoint"] == "a"
            out = {each["name"]: each["excluded"] for each in shown["endpoints"]}
            assert out["a"] is None
            assert out["b"] == "it is draining"
            assert out["c"] == "its health check fails"
            assert out["d"].startswith("ejected for ")
            assert out["e"] == "it serves other"
            assert (await debug_route(router, params={"service": "other"})).json()["endpoint"] == "e"
            known["d"].health.breaker.open_until = time.monotonic()
            known["d"].health.breaker.probing = True
            tried = {each["name"]: each["excluded"] for each in (await debug_route(router)).json()["endpoints"]}
            assert tried["d"] == "its ejection has ended, and one request is trying it"
            for name in "adc":
                reconfigure(known[name], draining=True)
            nobody = (await debug_route(router)).json()
            assert nobody["endpoint"] is None
            assert nobody["reason"] == "no endpoint may be chosen"


async def test_a_body_that_is_no_json_is_refused() -> None:
    async with MockEngine() as engine, serving(engine) as router:
        response = await router.admin.post("/debug/route", content=b"{")
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "invalid_json"


async def test_access_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    async with MockEngine() as engine, serving(engine) as router:
        assert (await debug_route(router)).status_code == 200
        refused = await debug_route(router, headers=FORWARDED)
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "debug_refused"
        monkeypatch.setenv(environment.INTERNAL_TOKEN_FILE, str(token))
        given = {"x-blade-internal-token": "secret"}
        assert (await debug_route(router, headers={**FORWARDED, **given})).status_code == 200
        assert (await debug_route(router, headers={"x-blade-internal-token": "wrong"})).status_code == 403
        token.unlink()
        assert (await debug_route(router, headers=given)).status_code == 403


async def test_everybody_may_where_it_is_switched_on() -> None:
    async with MockEngine() as engine, serving(engine, debug_routes=True) as router:
        response = await debug_route(router, question(), headers=FORWARDED)
        assert response.status_code == 200
        assert response.json()["endpoint"] == "engine"


async def test_it_knows_what_is_cached_for_a_key_that_is_named(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    write(keys, content(key(), key("other", "sk-other")))
    async with MockEngine("a") as a, MockEngine("b") as b:
        async with serving(a, b, keys=keys, debug_routes=True) as router:
            sent = await router.client.post("/v1/chat/completions", json=LONG, headers=BEARER)
            assert sent.status_code == 200
            home = sent.headers["x-blade-endpoint"]

            async def cached(**extra: Any) -> float:
                shown = (await debug_route(router, **extra)).json()
                return next(each["scores"]["cached_blocks"] for each in shown["endpoints"] if each["name"] == home)

            assert await cached(params={"key": "team-a"}) == 19
            assert await cached(params={"key": "other"}) == 0
            assert await cached() == 0
            own = LONG | {"cache_salt": "mine"}
            assert (await debug_route(router, own, params={"key": "team-a"})).json()["endpoint"]
            unknown = await debug_route(router, params={"key": "team-x"})
            assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "key_not_found")
            stranger = await debug_route(router, params={"key": "team-a"}, headers=FORWARDED)
            assert stranger.status_code == 403, "--debug_routes opens no other key's prompts"


async def test_what_is_no_finite_number_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("math.dist", lambda endpoint, request: math.inf if endpoint.name == "a" else 1.0)
    async with MockEngine("a") as a, MockEngine("b") as b:
        async with serving(a, b, policy="external", cost="math:dist") as router:
            shown = (await debug_route(router)).json()
            assert {each["name"]: each["scores"] for each in shown["endpoints"]} == {
                "a": {"cost": None},
                "b": {"cost": 1.0},
            }


async def test_only_endpoints_with_the_adapter_are_candidates() -> None:
    async with MockEngine("a") as a, MockEngine("b") as b, serving(a, b) as router:
        known = {endpoint.name: endpoint for endpoint in router.router.endpoints.all}
        known["a"].report.adapters = frozenset({"poet"})
        shown = (await debug_route(router, LONG | {"model": "poet"})).json()
        assert shown["endpoint"] == "a"
        excluded = {each["name"]: each["excluded"] for each in shown["endpoints"]}
        assert excluded == {"a": None, "b": "it has not loaded the adapter"}


async def test_an_endpoint_without_a_free_slot_is_passed_over_as_by_the_proxy(tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    path.write_text(json.dumps({"queue": {"endpoint_requests": 1}}))
    async with MockEngine("a") as a, MockEngine("b") as b, serving(a, b, policy="prefix", config=path) as router:
        first = await router.client.post("/v1/chat/completions", json=LONG)
        assert first.status_code == 200
        home = (await debug_route(router)).json()["endpoint"]
        (full,) = [endpoint for endpoint in router.router.endpoints.all if endpoint.name == home]
        full.in_flight += 1  # takes its only slot
        shown = (await debug_route(router)).json()
        assert shown["endpoint"] not in (None, home)
        excluded = {each["name"]: each["excluded"] for each in shown["endpoints"]}
        assert excluded[home] == "it has no free slot, and another one has"
        real = await router.client.post("/v1/chat/completions", json=LONG)
        assert real.headers["x-blade-route-reason"].startswith("prefix")
        assert (len(a.received), len(b.received)) == (1, 1)


async def test_it_shows_where_a_confined_key_goes(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    write(keys, content(key(), key("other", "sk-other")))
    async with MockEngine("a") as a, MockEngine("b") as b, serving(a, b, keys=keys) as router:
        known = {endpoint.name: endpoint for endpoint in router.router.endpoints.all}
        confinement = router.router.endpoints.confinement
        for name in "ab":
            confinement.convicted("team-a", known[name])

        async def shown(name: str) -> tuple[str, dict[str, str | None]]:
            found = (await debug_route(router, params={"key": name})).json()
            return found["endpoint"], {each["name"]: each["excluded"] for each in found["endpoints"]}

        confined = "the key is confined to other endpoints, as its requests killed engines"
        assert await shown("team-a") == ("b", {"a": confined, "b": None})
        expected = {"a": None, "b": "keys whose requests killed engines are confined to it"}
        assert await shown("other") == ("a", expected)


async def test_it_shows_where_a_suspected_request_is_tried() -> None:
    async with MockEngine("a") as a, MockEngine("b") as b, serving(a, b) as router:
        known = {endpoint.name: endpoint for endpoint in router.router.endpoints.all}
        router.router.endpoints.confinement.try_on(known["a"], "")
        shown = (await debug_route(router)).json()
        assert shown["endpoint"] == "b"
        excluded = {each["name"]: each["excluded"] for each in shown["endpoints"]}
        assert excluded == {"a": "a request that is suspected of killing engines is being tried on it", "b": None}
