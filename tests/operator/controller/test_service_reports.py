"""Routers are told how their service is: after a change, when they have just come up, and now and then again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from aiohttp import web

from blade_operator.controller import service_reports
from blade_operator.controller.service_reports import ServiceReports, has_ui
from blade_operator.fleet import Fleet, Router
from blade_operator.kept_connections import Peer
from blade_operator.model.objects import Key, Object
from blade_operator.model.plan import EventRecord
from blade_protocol import headers, paths

KEY = Key("default", "qwen")
NOW = datetime(2026, 11, 30, tzinfo=UTC)
SERVICE: Object = {"apiVersion": "v", "kind": "LLMService", "metadata": {"name": "qwen", "namespace": "default"}}


def router(name: str = "qwen-router-1") -> Router:
    return Router(name, Peer(f"uid-{name}", "127.0.0.1", 1), {"metadata": {"name": name}})


def pod(name: str = "qwen-router-1", restarts: int = 0) -> Object:
    status = [{"name": "router", "restartCount": restarts, "started": True}]
    return {"metadata": {"name": name, "labels": {}}, "status": {"containerStatuses": status}}


class Routers:
    """Takes what is sent, or does not."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.respond = True
        self.now = 0.0
        self.reports = ServiceReports(self._take, lambda: self.now)

    async def _take(self, router: Router, body: bytes) -> bool:
        self.sent.append((router.name, msgspec.json.decode(body)))
        return self.respond

    async def send(self, *names: str, restarts: int = 0, service: Object = SERVICE, **status: Any) -> int:
        """How many were sent."""
        before = len(self.sent)
        found = names or ("qwen-router-1",)
        pods = [pod(name, restarts) for name in found]
        await self.reports.send(KEY, service, status, pods, [router(name) for name in found], NOW)
        return len(self.sent) - before


@pytest.fixture
def routers() -> Routers:
    return Routers()


async def test_a_router_is_told_once_and_after_each_change(routers: Routers) -> None:
    assert await routers.send(phase="Pending") == 1
    assert await routers.send(phase="Pending") == 0
    assert await routers.send(phase="Ready") == 1
    assert routers.sent[-1][1]["object"]["status"] == {"phase": "Ready"}


async def test_one_that_has_just_come_up_is_told_and_no_other(routers: Routers) -> None:
    await routers.send("a")
    assert await routers.send("a", "b") == 1
    assert routers.sent[-1][0] == "b"
    assert await routers.send("a", "b", restarts=1) == 2  # other processes, which know nothing


async def test_one_that_did_not_take_it_is_told_again(routers: Routers) -> None:
    routers.respond = False
    assert await routers.send() == 1
    routers.respond = True
    assert await routers.send() == 1
    assert await routers.send() == 0


async def test_every_one_is_told_again_now_and_then(routers: Routers) -> None:
    await routers.send()
    routers.now += service_reports.AGAIN_SECONDS
    assert await routers.send() == 1


async def test_one_without_a_web_ui_is_not_told(routers: Routers) -> None:
    off = SERVICE | {"spec": {"router": {"ui": {"enabled": False}}}}
    assert await routers.send(service=off) == 0


@pytest.mark.parametrize("spec", [None, {}, [], {"router": None}, {"router": {"ui": 3}}, {"router": {"ui": {}}}])
def test_a_spec_of_any_form_leaves_it_on(spec: Any) -> None:
    assert has_ui({"spec": spec})


async def test_events_are_counted_when_they_repeat(routers: Routers) -> None:
    one, two = EventRecord("Warning", "Failed", "it failed"), EventRecord("Normal", "Ready", "it is ready")
    routers.reports.record(KEY, [one, two], NOW)
    routers.reports.record(KEY, [one], NOW)
    await routers.send()
    events = routers.sent[-1][1]["events"]
    assert [(each["reason"], each["count"]) for each in events] == [("Ready", 1), ("Failed", 2)]
    assert events[0]["object"] == "LLMService/qwen"
    routers.reports.forget(KEY)
    await routers.send()
    assert routers.sent[-1][1]["events"] == []


@asynccontextmanager
async def _listening(status: int) -> AsyncIterator[tuple[Router, list[web.Request]]]:
    seen: list[web.Request] = []

    async def respond(request: web.Request) -> web.Response:
        await request.read()
        seen.append(request)
        return web.Response(status=status)

    app = web.Application()
    app.router.add_post(paths.INTERNAL_SERVICE, respond)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield Router("r", Peer("u", "127.0.0.1", port), {"metadata": {}}), seen
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(("status", "done"), [(204, True), (404, True), (405, True), (403, False), (500, False)])
async def test_a_report_goes_to_the_admin_port_with_the_token(status: int, done: bool) -> None:
    async with _listening(status) as (found, seen), Fleet(token=lambda pod: "t0ken") as fleet:
        assert await fleet.report_service(found, b"{}") is done
        (request,) = seen
        assert request.headers[headers.INTERNAL_TOKEN] == "t0ken"
        assert await request.read() == b"{}"


async def test_a_router_that_is_gone_is_no_error() -> None:
    async with Fleet(timeout=0.2) as fleet:
        assert not await fleet.report_service(router(), b"{}")
