"""Streams read event by event, so that a test decides what an engine has sent when it dies."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, Self

from blade_protocol.routing import EndpointConfig
from router_support.engine import MockEngine
from router_support.serving import Running, eventually, serving

BODY: dict[str, Any] = {"model": "mock", "messages": [{"role": "user", "content": "hello"}], "stream": True}


def replica(name: str, tokens: int = 8, **options: Any) -> MockEngine:
    """An engine whose streams can be resumed. Events wait until :meth:`Reading.events` requests them."""
    return MockEngine(name, tokens=tokens, resumable=True, gate=asyncio.Semaphore(0), **options)


def config(replica: MockEngine, **options: Any) -> EndpointConfig:
    """The configuration of a replica whose internal port is its public one."""
    values = {"url": replica.url, "name": replica.name, "internal_url": replica.url, "revision": "r1", **options}
    return EndpointConfig(**values)


@contextlib.asynccontextmanager
async def over(*engines: MockEngine, configs: tuple[EndpointConfig, ...] = ()) -> AsyncIterator[Running]:
    """A router over replicas, once it has found all healthy that it may use."""
    configs = configs or tuple(config(engine) for engine in engines)
    async with serving(*engines, endpoints=configs, wait=False) as router:
        endpoints = router.router.endpoints
        await eventually(lambda: endpoints.usable_count() == sum(not each.draining for each in configs))
        yield router


class Reading:
    """One stream on its way through a router."""

    def __init__(self, chunks: AsyncIterator[bytes], engines: dict[str, MockEngine], name: str) -> None:
        self._chunks = chunks
        self._engines = engines
        self.engine = engines[name]
        """The engine the router sent the request to."""
        self.content = b""

    @classmethod
    @contextlib.asynccontextmanager
    async def of(
        cls, router: Running, *engines: MockEngine, path: str = "/v1/chat/completions", **fields: Any
    ) -> AsyncIterator[Self]:
        """Request a stream; its first event has been read."""
        for engine in engines:
            engine.gate.release()  # type: ignore[union-attr] - whoever gets it
        async with router.client.stream("POST", path, json={**BODY, **fields}) as response:
            assert response.status_code == 200
            name = response.headers["x-blade-endpoint"]
            for engine in engines:
                if engine.name != name:
                    await engine.gate.acquire()  # type: ignore[union-attr]
            reading = cls(response.aiter_raw(), {engine.name: engine for engine in engines}, name)
            await reading.until(1)
            yield reading

    async def more(self, engine: MockEngine, events: int) -> None:
        """Let ``engine`` write so many, and read them."""
        assert engine.gate is not None
        have = self.content.count(b"\n\n")
        for _ in range(events):
            engine.gate.release()
        await self.until(have + events)

    async def until(self, events: int) -> None:
        while self.content.count(b"\n\n") < events:
            self.content += await anext(self._chunks)

    async def rest(self, *engines: MockEngine) -> bytes:
        """Let these engines write all they have, and read to the end. All that came."""
        for engine in engines:
            for _ in range(100):
                engine.gate.release()  # type: ignore[union-attr]
        async for chunk in self._chunks:
            self.content += chunk
        return self.content

    def other(self, *but: MockEngine) -> MockEngine:
        """Another engine than the present one and ``but``."""
        return next(engine for engine in self._engines.values() if engine is not self.engine and engine not in but)


def whole(engine: MockEngine, *, named: bool = False) -> bytes:
    """The stream of an engine that lives."""
    make = engine.response_event if named else engine.event
    return b"".join(make(index) for index in range(engine.tokens)) + (b"" if named else b"data: [DONE]\n\n")


def error_of(content: bytes) -> dict[str, Any]:
    """The error event at a stream's end."""
    last = content.rstrip(b"\n").rpartition(b"\n\n")[2]
    found: dict[str, Any] = json.loads(last.partition(b"data: ")[2])["error"]
    return found
