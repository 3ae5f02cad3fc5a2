"""Following our engines over their internal port: load, draining, models, and the connection that brings them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from router_support.engine import MockEngine, chunk
from router_support.internal_port import InternalPort
from router_support.serving import Running, eventually, serving

from blade_protocol.adapters import AdapterCounts
from blade_protocol.routing import EndpointConfig, RouterConfig
from blade_protocol.state import KVBatch, MemoryPlan
from blade_router.endpoints.endpoint import Endpoint
from blade_router.engines import blade, watchers


@contextlib.asynccontextmanager
async def watching(
    engine: MockEngine, port: InternalPort, **options: object
) -> AsyncIterator[tuple[Running, Endpoint]]:
    config = EndpointConfig(url=engine.url, name=engine.name, internal_url=port.url)
    async with serving(endpoints=(config,), wait=False) as running:
        endpoint = running.router.endpoints.all[0]
        await eventually(lambda: endpoint.health.up)
        yield running, endpoint


def test_the_internal_port_is_the_public_one_plus_a_thousand_unless_configured() -> None:
    for url, internal_url, expected in (
        ("http://10.0.0.7:8081", "", "http://10.0.0.7:9081"),
        ("http://[fd00::7]:8081", "", "http://[fd00::7]:9081"),
        ("http://10.0.0.7:8081", "http://10.0.0.7:77", "http://10.0.0.7:77"),
    ):
        assert Endpoint(EndpointConfig(url=url, internal_url=internal_url)).internal_origin == expected


async def test_load_models_and_room_come_with_each_event() -> None:
    plan = MemoryPlan(
        weights=1,
        activation_peak=1,
        kv_cache=1,
        kv_block_bytes=1,
        kv_blocks=100,
        kv_tokens=1_600,
        max_model_len=64,
        concurrent_at_max_len=1,
    )
    async with MockEngine("a") as engine, InternalPort(memory=plan, max_running=8) as port:
        async with watching(engine, port) as (_, endpoint):
            await eventually(lambda: endpoint.report.models == {"m"})
            assert (endpoint.report.capacity, endpoint.report.cache_tokens, endpoint.report.kv_usage) == (8, 1_600, 0.0)
            before = endpoint.report.reported_at
            assert before > 0
            for writer in port.subscribers:
                writer.write(chunk(b": alive\n\n"))
            await eventually(lambda: endpoint.report.reported_at > before)
            port.set(running=3, waiting=2, kv_blocks_free=25, adapters=("french",))
            await eventually(lambda: endpoint.report.running == 3)
            assert (endpoint.report.waiting, endpoint.report.kv_usage) == (2, 0.75)
            assert (endpoint.report.adapters, endpoint.report.models) == ({"french"}, {"m", "french"})
            counts = AdapterCounts(
                device_hits=0, device_loads=0, host_hits=0, host_loads=1, host_evictions=0, host_load_seconds=0.25
            )
            port.set(adapters=("french", "greek"), adapter_tiers=("host", "disk"), adapter_counts=counts)
            await eventually(lambda: endpoint.report.adapter_seconds == {"greek": 0.25})
            port.set(adapter_tiers=("host", "device"))
            await eventually(lambda: endpoint.report.adapter_seconds == {})
            port.state = msgspec.structs.replace(port.state, running=4)
            port.publish(KVBatch(sequence=1, stored=b"x" * 8))
            await eventually(lambda: endpoint.report.running == 4)
            assert getattr(endpoint.report.state, "kv", None) is None, "a batch is not kept"
            assert port.queries == {"/internal/events": 1}, "one connection, and no poll"


async def test_an_engine_that_reports_draining_gets_no_more_requests() -> None:
    async with MockEngine("a") as engine, InternalPort() as port, MockEngine("b") as other:
        config = EndpointConfig(url=engine.url, name="a", internal_url=port.url)
        both = (config, EndpointConfig(url=other.url, name="b"))
        async with serving(endpoints=both, wait=False, health_interval=60) as running:
            await eventually(lambda: running.router.endpoints.usable_count() == 2 and port.subscribers)
            probes = engine.probes
            engine.mode = "draining"
            port.set(draining=True)
            await eventually(lambda: running.router.endpoints.usable_count() == 1)
            for _ in range(4):
                assert (await running.chat()).json()["choices"][0]["message"]["content"] == "from b"
            assert not engine.received, "without a request that had to find out"
            engine.mode = "ok"
            port.set(draining=False)
            await eventually(lambda: running.router.endpoints.usable_count() == 2)
            assert engine.probes > probes, "taken back by the health check"


async def test_a_connection_that_breaks_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "INITIAL_BACKOFF", 0.01)
    async with MockEngine("a") as engine, InternalPort() as port:
        async with watching(engine, port) as (_, endpoint):
            for running in range(1, 4):
                await eventually(lambda: port.subscribers)
                port.set(running=running)
                await eventually(lambda running=running: endpoint.report.running == running)  # type: ignore[misc]
                port.hang_up()
            port.stop()
            await asyncio.sleep(0)
            await port.start()
            await eventually(lambda: port.subscribers)
            assert port.queries["/internal/state"] == 0


async def test_an_engine_without_events_is_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "INITIAL_BACKOFF", 0.01)
    monkeypatch.setattr(watchers, "POLL_SECONDS", 0.01)
    async with MockEngine("a") as engine, InternalPort(running=5) as port:
        port.statuses["/internal/events"] = 404
        async with watching(engine, port) as (_, endpoint):
            await eventually(lambda: endpoint.report.running == 5)
            port.set(running=6)
            await eventually(lambda: endpoint.report.running == 6)
            assert endpoint.revision == "rev-7"
            del port.statuses["/internal/events"]
            await eventually(lambda: port.subscribers)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"data: {\n\n",
        b'data: {"model": 7}\n\n',
        b"data: " + b"x" * 40_000 + b"\n\n",
        b"x" * 40_000,
        b"\xff\xfe\n\n",
        b"data: []\n\n",
    ],
)
async def test_malformed_events_cost_the_connection_and_nothing_else(
    nonsense: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchers, "INITIAL_BACKOFF", 0.01)
    monkeypatch.setattr(blade, "MAX_EVENT_BYTES", 30_000)
    async with MockEngine("a") as engine, InternalPort() as port:
        async with watching(engine, port) as (running, endpoint):
            await eventually(lambda: port.subscribers)
            (writer,) = port.subscribers
            writer.write(chunk(nonsense))
            if not nonsense.startswith(b"\xff"):  # a line that is no data is no event
                await eventually(lambda: port.queries["/internal/events"] == 2)
            await eventually(lambda: len(port.subscribers) >= 1)
            port.set(running=9)
            await eventually(lambda: endpoint.report.running == 9)
            assert (await running.chat()).status_code == 200


async def test_a_silent_stream_is_reconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "INITIAL_BACKOFF", 0.01)
    monkeypatch.setattr(blade, "SILENCE_SECONDS", 0.05)
    async with MockEngine("a") as engine, InternalPort() as port:
        async with watching(engine, port):
            await eventually(lambda: port.queries["/internal/events"] >= 3)


async def test_a_removed_endpoint_is_not_watched(tmp_path: Path) -> None:
    file = tmp_path / "router.json"
    async with MockEngine("a") as engine, InternalPort() as port:
        config = EndpointConfig(url=engine.url, name="a", internal_url=port.url)
        file.write_bytes(msgspec.json.encode(RouterConfig(endpoints=(config,))))
        async with serving(endpoints=(), config=file, wait=False) as running:
            await eventually(lambda: port.subscribers)
            file.write_bytes(msgspec.json.encode(RouterConfig()))
            await eventually(lambda: not running.router.endpoints.all)
            port.set(running=1)
            await eventually(lambda: not running.router.engine_watchers.watched)
