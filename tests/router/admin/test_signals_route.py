"""A request for signals may wait for demand: it is answered at once when the first request is held."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest
from router_support.serving import Running, eventually, question, raw_post, serving

from blade_protocol import environment, headers, paths
from blade_protocol.signals import RouterSignals
from blade_router.admission.demand import MAX_WAITERS

WAIT = {"wait_for": "demand", "timeout": "60"}


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[Running]:
    """One without engines, that holds requests."""
    path = tmp_path / "router.json"
    path.write_text(json.dumps({"hold": {"max_requests": 9}}))
    async with serving(wait=False, config=path) as running:
        yield running


def waiting(router: Running) -> int:
    return len(router.router.request_queues.demand._waiters)


async def wait_for_demand(router: Running, **params: str) -> httpx.Response:
    return await router.admin.get(paths.INTERNAL_SIGNALS, params=WAIT | params, timeout=60)


async def test_a_held_request_is_reported_while_it_waits(router: Running) -> None:
    wait = asyncio.create_task(wait_for_demand(router))
    await eventually(lambda: waiting(router) == 1)
    _, writer = await raw_post(router.port, question())
    found = msgspec.json.decode((await wait).content, type=RouterSignals)
    assert [(each.held_requests, each.held_arrivals) for each in found.services] == [(1, 1)]
    again = msgspec.json.decode((await wait_for_demand(router)).content, type=RouterSignals)
    assert again.services[0].held_requests == 1
    writer.close()
    await eventually(lambda: not router.router.request_queues.demand.present)


async def test_without_demand_the_signals_come_after_the_timeout(router: Running) -> None:
    response = await wait_for_demand(router, timeout="0.01")
    found = msgspec.json.decode(response.content, type=RouterSignals)
    assert (response.status_code, sum(each.held_requests for each in found.services)) == (200, 0)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"wait_for": "load"}, "wait_for: must be demand"),
        ({"timeout": "0"}, "timeout: must be seconds, more than 0 and at most 300"),
        ({"timeout": "301"}, "timeout: must be seconds"),
        ({"timeout": "nan"}, "timeout: must be seconds"),
        ({"timeout": "soon"}, "timeout: must be seconds"),
    ],
)
async def test_wrong_parameters_are_named(router: Running, params: dict[str, str], message: str) -> None:
    response = await wait_for_demand(router, **params)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


async def test_only_so_many_wait_and_who_leaves_makes_room(router: Running) -> None:
    waits = [asyncio.create_task(wait_for_demand(router)) for _ in range(MAX_WAITERS)]
    await eventually(lambda: waiting(router) == MAX_WAITERS)
    refused = await wait_for_demand(router)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
    assert (await router.admin.get(paths.INTERNAL_SIGNALS)).status_code == 200, "who does not wait is not refused"
    waits[0].cancel()
    await eventually(lambda: waiting(router) == MAX_WAITERS - 1)
    router.router.request_queues.demand.close()
    assert {(await each).status_code for each in waits[1:]} == {200}


async def test_it_takes_the_internal_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret")
    monkeypatch.setenv(environment.INTERNAL_TOKEN_FILE, str(token))
    async with serving(wait=False) as router:
        assert (await wait_for_demand(router)).status_code == 403
        params = WAIT | {"timeout": "0.01"}
        given = {headers.INTERNAL_TOKEN: "s3cret"}
        assert (await router.admin.get(paths.INTERNAL_SIGNALS, params=params, headers=given)).status_code == 200
