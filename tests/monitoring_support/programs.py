"""Engine, router and operator as their real code runs them, with requests that move every number they have."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

import httpx
import pytest
from engine_support.server_process import ServerProcess, running_server
from operator_support.apiserver import fake_api_server, llm_service
from operator_support.local import free_port, until
from operator_support.mini_cluster import MiniCluster
from operator_support.mini_cluster import service as mini_service
from operator_support.watching import FAST
from router_support.engine import MockEngine
from router_support.serving import Running, eventually, question, serving
from router_support.streams import config

from blade_operator import metrics
from blade_operator.cluster.kubernetes.watching import kopf_settings
from blade_operator.controller.controller import Controller
from blade_operator.controller.process import Process, Settings
from blade_operator.fleet import Fleet
from blade_operator.model.objects import Key
from blade_operator.model.observed import Observed
from blade_operator.model.plan import Plan
from blade_operator.render import Defaults
from blade_protocol.routing import HoldConfig, QueueConfig, RouterConfig
from blade_router.statistics.shadow import ShadowCounts

DEMO: Final = Path(__file__).parents[2] / "examples/demo_model"
FLAGS: Final = (
    *("--load_format", "auto", "--dtype", "float32", "--kv_cache_bytes", "16MiB", "--served_model_name", "demo"),
    *("--enable_lora", "true", "--lora_modules", f"pirate={DEMO / 'adapter'}", "--decode_algo", "ngram"),
    *("--ngram_min_match", "1"),
)


@contextlib.contextmanager
def engine(folder: Path) -> Iterator[ServerProcess]:
    """The demo model with an adapter and speculative decoding."""
    with running_server(folder, DEMO / "model", *FLAGS, engine="real") as server:
        yield server


async def ask_engine(server: ServerProcess, client: httpx.AsyncClient) -> None:
    """A prompt that repeats itself, so that n-grams are found, of the base and of the adapter."""
    for model in ("demo", "pirate"):
        body: dict[str, Any] = {"model": model, "prompt": "one two one two one two one two one", "max_tokens": 16}
        response = await client.post(f"{server.url}/v1/completions", json=body | {"ignore_eos": True, "temperature": 0})
        assert response.status_code == 200, response.text


class Routed:
    """A router whose engines come late, fail and are slow."""

    def __init__(self, running: Running, good: MockEngine, bad: MockEngine) -> None:
        self.running = running
        self._good = good
        self._bad = bad
        self._rounds = itertools.count()
        self._numbers = itertools.count()
        """Each request differs: one that kills several engines is refused."""

    async def ask(self) -> None:
        """Streams and whole responses, and what is wrong with requests and engines."""
        client = self.running.client
        self._bad.mode = "reset" if next(self._rounds) > 3 else "break"
        bodies = [question(stream=bool(number % 2)) | {"user": str(next(self._numbers))} for number in range(6)]
        asked = [client.post("/v1/chat/completions", json=body) for body in bodies]
        await asyncio.gather(*asked, client.post("/v1/completions", content=b"{"))


@contextlib.asynccontextmanager
async def routed() -> AsyncIterator[Routed]:
    """The router, once it has held a request."""
    usage: Any = {"prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 11}
    usage |= {"prompt_tokens_details": {"cached_tokens": 4}}
    good = MockEngine("good", usage=usage, delay=0.005, resumable=True)
    bad = MockEngine("bad", mode="break", resumable=True)
    for each in (good, bad):
        await each.start()
        await each.kill()
    endpoints = tuple(config(each) for each in (good, bad))
    async with serving(wait=False, endpoints=endpoints) as running:
        running.router.apply(
            RouterConfig(endpoints=endpoints, queue=QueueConfig(endpoint_requests=1), hold=HoldConfig(max_requests=9))
        )
        held = asyncio.create_task(running.client.post("/v1/chat/completions", json=question(stream=True)))
        await eventually(lambda: running.router.request_queues.pending.count() == 1)
        _count_rare(running)
        async with good, bad:
            await held
            yield Routed(running, good, bad)


def _count_rare(running: Running) -> None:
    """What takes a canary or several routers, counted as those count it."""
    counted = running.router.metrics
    shadow = ShadowCounts("new", counted.shadow_totals)
    shadow.sent()
    shadow.greedy(same=True)
    counted.replica_sync = lambda: ({"sent": 2, "received": 1}, 1)


class _Still:
    """A cluster with one service that is as it should be."""

    def __init__(self) -> None:
        self._service = MiniCluster(mini_service())
        self._service.converge()

    async def observe(self, key: Key) -> Observed:
        return self._service.observed()

    def decide(self, observed: Observed, now: datetime) -> Plan:
        return self._service.plan()


class Operated:
    """An operator that leads. Beside it a controller reconciles a service that is ready, as often as is requested."""

    def __init__(self, port: int, controller: Controller) -> None:
        self.port = port
        self._controller = controller

    async def reconcile(self) -> None:
        await self._controller.reconcile(Key("default", "qwen"))

    def meet_the_rare(self) -> None:
        """What an operator meets seldom, counted as it counts it."""
        metrics.WATCH_RESTARTS.labels("Pod").inc()
        metrics.SWEEP_CORRECTIONS.labels("Pod").inc()
        metrics.SKIPPED.labels("team", "LeaderWorkerSet").set(1)
        metrics.EVENTS.labels("emitted").inc()
        metrics.EXTERNAL_METRICS_REQUESTS.labels("200").inc()


@contextlib.asynccontextmanager
async def operated(patch: pytest.MonkeyPatch) -> AsyncIterator[Operated]:
    """The operator, with a fake API server."""
    patch.setattr(kopf_settings, "BACKOFFS", FAST)
    async with fake_api_server() as server, Fleet() as fleet:
        server.put("LLMService", llm_service(1))
        settings = Settings("system", (), Defaults(), None, "system/bladellm", "me", free_port(), 2)
        process = Process(server.configuration, settings, lambda: None)
        still = _Still()
        await process.start()
        try:
            await until(lambda: not process._unready())
            yield Operated(settings.http_port, Controller(cast(Any, still), fleet, still.decide))
        finally:
            await process.stop()
