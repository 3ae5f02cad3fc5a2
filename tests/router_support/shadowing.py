"""A router in front of two revisions, of which one gets copies of requests."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from blade_protocol import paths
from blade_protocol.routing import EndpointConfig, RouterConfig, ShadowConfig
from blade_protocol.signals import RouterSignals, ShadowSignals
from blade_router.proxy.shadow import Shadows
from router_support.engine import MockEngine
from router_support.serving import Running, eventually, question, serving


class Shadowed:
    """The router, its engines, and what it has counted of the copies."""

    def __init__(self, running: Running, config: RouterConfig, old: MockEngine, new: MockEngine) -> None:
        self.running = running
        self.config = config
        self.old = old
        self.new = new

    @property
    def shadows(self) -> Shadows:
        shadows = self.running.router.proxy.shadows
        assert shadows is not None
        return shadows

    @property
    def found(self) -> ShadowSignals:
        return self.shadows.counts.signals()

    def apply(self, **changed: Any) -> None:
        """Another configuration."""
        self.running.router.apply(msgspec.structs.replace(self.config, **changed))

    async def signals(self) -> RouterSignals:
        response = await self.running.admin.get(paths.INTERNAL_SIGNALS)
        return msgspec.json.decode(response.content, type=RouterSignals)

    async def ask(self, stream: bool = False, status: int = 200, **fields: Any) -> bytes:
        """The client's answer, which is the old revision's."""
        body = question(stream=stream) | fields
        response = await self.running.client.post("/v1/chat/completions", json=body)
        assert response.status_code == status
        assert response.headers["x-blade-endpoint"] == "old"
        return response.content

    async def settled(self) -> ShadowSignals:
        """What is counted once no copy is under way."""
        await eventually(lambda: self.shadows.running == 0, "a copy never ended")
        return self.found


@contextlib.asynccontextmanager
async def shadowed(
    old: MockEngine | None = None, new: MockEngine | None = None, share: float = 100.0, **options: Any
) -> AsyncIterator[Shadowed]:
    """All requests go to ``old``, and copies of ``share`` percent of them to ``new``."""
    async with old or MockEngine("same") as first, new or MockEngine("same") as second:
        endpoints = (
            EndpointConfig(url=first.url, name="old", revision="old"),
            EndpointConfig(url=second.url, name="new", revision="new"),
        )
        config = RouterConfig(
            policy="round-robin",
            endpoints=endpoints,
            canary={"old": 100, "new": 0},
            shadow=ShadowConfig(revision="new", share=share),
        )
        async with serving(wait=False, endpoints=(), **options) as running:
            running.router.apply(config)
            await eventually(lambda: running.router.endpoints.usable_count() == 2)
            yield Shadowed(running, config, first, second)
