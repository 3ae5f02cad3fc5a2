"""A tenant whose every request kills an engine, each a different one, and one who only wants its answers."""

import asyncio
from pathlib import Path

import httpx
import pytest
from router_support.keys import content, key, write
from router_support.poison import code, crashes, fleet
from router_support.serving import Running, eventually, question, serving

from blade_router.endpoints import confinement


async def send(router: Running, tenant: str, text: str) -> httpx.Response:
    body = question() | {"messages": [{"role": "user", "content": text}]}
    return await router.client.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer sk-{tenant}"})


def tenants(path: Path) -> Path:
    write(path, content(key("hog", "sk-hog"), key("tenant", "sk-tenant")))
    return path


async def test_different_poisonous_requests_of_one_key_kill_one_engine_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confinement, "SAME_CRASH_SECONDS", 0.0)
    keys = tenants(tmp_path / "keys.json")
    async with fleet() as engines, serving(*engines, keys=keys, policy="round-robin") as router:
        for number in range(20):
            assert code(await send(router, "hog", f"poison {number}")) == (502, "engine_lost")
            for _ in range(4):
                assert (await send(router, "tenant", "hello")).status_code == 200
        counts = sorted(engine.crashes for engine in engines)
        assert sum(counts[:-1]) <= 2, "two with the first request, one with the second, and the same one from then on"
        assert await router.metric("blade_router_confined_keys") == 1
        worst = max(engines, key=lambda engine: engine.crashes)
        before = len(worst.received)
        for _ in range(12):
            await send(router, "tenant", "hello")
        assert len(worst.received) == before, "others do not go where it went"
        assert (await send(router, "hog", "hello")).status_code == 200
        assert len(worst.received) == before + 1


async def test_a_confined_key_is_told_why_it_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "SAME_CRASH_SECONDS", 0.0)
    keys = tenants(tmp_path / "keys.json")
    async with fleet() as engines, serving(*engines, keys=keys) as router:
        for number in range(2):
            await send(router, "hog", f"poison {number}")
        (worst,) = router.router.endpoints.confinement.part(router.router.endpoints.all)
        next(engine for engine in engines if engine.name == worst.name).mode = "draining"
        worst.health.check_now()
        await eventually(lambda: worst.health.draining)
        answered = await send(router, "hog", "hello")
        assert code(answered) == (503, "key_confined")
        assert answered.headers["retry-after"] == "5"
        assert (await send(router, "tenant", "hello")).status_code == 200


async def test_without_keys_nobody_is_confined() -> None:
    async with fleet() as engines, serving(*engines) as router:
        for number in range(4):
            body = question() | {"messages": [{"role": "user", "content": f"poison {number}"}]}
            assert code(await router.client.post("/v1/chat/completions", json=body)) == (502, "engine_lost")
        assert crashes(engines) == 8
        assert not router.router.endpoints.confinement.needed


async def test_a_suspected_request_is_tried_where_nobody_else_goes(tmp_path: Path) -> None:
    gate = asyncio.Semaphore(0)
    keys = tenants(tmp_path / "keys.json")
    async with fleet(2, gate=gate) as engines, serving(*engines, keys=keys) as router:
        suspect = asyncio.create_task(send(router, "hog", "poison"))
        await eventually(lambda: any(engine.active for engine in engines))
        gate.release()
        await eventually(lambda: crashes(engines) == 1 and any(engine.active for engine in engines))
        (other,) = [engine for engine in engines if not engine.active]
        others = [asyncio.create_task(send(router, "tenant", f"hello {number}")) for number in range(4)]
        await eventually(lambda: other.active == 4)
        for _ in range(8):
            gate.release()
        assert {(await each).status_code for each in others} == {200}
        assert code(await suspect) == (502, "engine_lost")
