"""Configuration files are watched; a mistake in one changes nothing and is named."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from router_support.engine import MockEngine
from router_support.serving import eventually, question, raw_post, serving

from blade_protocol.routing import EndpointConfig, ModelConfig, RouterConfig
from blade_router.config.parsing import ConfigError, parse_config, parse_endpoints
from blade_router.config.replicas import FileReplicas
from blade_router.config.sources import Configuration, WatchedFile


def write(path: Path, content: Any) -> None:
    """Replace the file in one step, as the programs that keep such files do."""
    text = content if isinstance(content, str) else json.dumps(content)
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    os.replace(temporary, path)


def listing(*engines: MockEngine, **more: Any) -> dict[str, Any]:
    return {"endpoints": [{"url": engine.url, "name": engine.name} for engine in engines], **more}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "truncated"),
        ('{"endpoint": []}', "`endpoint`"),
        ('{"endpoints": [{"url": "http://a:1"}, {"name": "x"}]}', "$.endpoints[1]"),
        ('{"endpoints": [{"url": 5}]}', "$.endpoints[0].url"),
        ('{"endpoints": [{"url": "http://a:1", "weight": 2}]}', "`weight`"),
        ('{"endpoints": [{"url": "http://a:1"}, {"url": "a:1"}]}', "$.endpoints[1].url"),
        ('{"endpoints": [{"url": "https://a"}]}', "http://HOST:PORT"),
        ('{"endpoints": [{"url": "http://a:99999"}]}', "$.endpoints[0].url"),
        ('{"endpoints": [{"url": "http://a:1/v1"}]}', "without a path"),
        ('{"endpoints": [{"url": "http://a:1"}, {"url": "http://a:1/"}]}', "listed twice"),
        ('{"endpoints": [{"url": "http://a b:1"}]}', "$.endpoints[0].url"),
        ('{"endpoints": [{"url": "http://a:1", "name": "a\\nb"}]}', "$.endpoints[0].name"),
        ('{"policy": "fastest"}', "$.policy"),
        ('{"endpoints": [{"url": "http://a:1", "internal_url": "a:2"}]}', "$.endpoints[0].internal_url"),
        ('{"endpoints": [{"url": "http://a:1", "internal_url": "http://a:2/x"}]}', "without a path"),
        ('{"hold": {"heartbeat": 0}}', "$.hold.heartbeat"),
        ('{"hold": {"heartbeat": -1}}', "$.hold.heartbeat"),
        ('{"hold": {"max_age": -0.1}}', "$.hold.max_age"),
        ('{"queue": {"endpoint_requests": -1}}', "$.queue.endpoint_requests"),
        ('{"queue": {"max_bytes": -1}}', "$.queue.max_bytes"),
        ('{"limits": {"tokens_per_minute": -1}}', "$.limits.tokens_per_minute"),
        ('{"anonymous": {"concurrent": -1}}', "$.anonymous.concurrent"),
        ('{"models": [{"name": "a"}, {"name": "b", "max_tokens": -1}]}', "$.models[1].max_tokens"),
        ('{"models": [{"name": "a", "limits": {"concurrent": -1}}]}', "$.models[0].limits.concurrent"),
        ('{"canary": {"r1": 1, "r2": -0.5}}', "$.canary['r2']"),
        ('{"adapters": [{"name": "a"}, {"name": "a"}]}', "$.adapters[1].name: 'a' is $.adapters[0].name already"),
        ('{"adapters": [{"name": ""}]}', "$.adapters[0].name"),
        ('{"adapters": [{"name": "a", "weight": -1}]}', "$.adapters[0].weight"),
        ('{"adapters": [{"name": "a", "weight": 0}]}', "no adapter of 'a' has a weight above 0"),
        ('{"adapters": [{"name": "a", "model": "x"}, {"name": "b", "model": "a"}]}', "$.adapters[1].model: 'a' is"),
        (
            '{"adapters": [{"name": "a", "service": "s"}, {"name": "b", "model": "a", "service": "t"}]}',
            "of different services",
        ),
    ],
)
def test_mistakes_are_named_by_path(content: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(content.encode())
    assert says in str(caught.value)


def test_endpoint_list_of_the_command_line() -> None:
    urls = [endpoint.url for endpoint in parse_endpoints("http://a:1/, http://[::1]:2 ,http://b")]
    assert urls == ["http://a:1", "http://[::1]:2", "http://b"]
    with pytest.raises(ConfigError, match="expected URL"):
        parse_endpoints(" , ")


def test_sources_add_up(tmp_path: Path) -> None:
    config, service = tmp_path / "config.json", tmp_path / "service.json"
    write(config, {"endpoints": [{"url": "http://b:1"}], "policy": "round-robin", "models": [{"name": "m"}]})
    write(
        service, {"endpoints": [{"url": "http://c:1"}, {"url": "http://a:1", "name": "x"}], "policy": "least-request"}
    )
    static = (EndpointConfig(url="http://a:1"),)
    current = Configuration(static, config=WatchedFile(config), service=WatchedFile(service)).start()
    assert [(endpoint.url, endpoint.name) for endpoint in current.endpoints] == [
        ("http://a:1", "x"),
        ("http://b:1", ""),
        ("http://c:1", ""),
    ]
    assert (current.policy, current.models) == ("round-robin", (ModelConfig(name="m"),))
    assert Configuration(static, config=WatchedFile(config), policy="auto").start().policy == "auto"


def test_config_file_must_be_there_and_valid_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        Configuration(config=WatchedFile(tmp_path / "absent")).start()
    write(tmp_path / "bad", '{"policy": 1}')
    with pytest.raises(ConfigError, match=r"bad: .*\$\.policy"):
        Configuration(config=WatchedFile(tmp_path / "bad")).start()


def test_a_bad_file_is_reported_once_per_change(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, "{}")
    file = WatchedFile(path)
    file.load()
    write(path, "{")
    with pytest.raises(ConfigError):
        file.load()
    assert file.load() is False


async def test_config_file_is_watched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "router.json"
    async with MockEngine("a") as a, MockEngine("b") as b:
        write(path, listing(a))
        async with serving(wait=False, config=path) as router:
            await eventually(lambda: router.router.endpoints.usable_count() == 1)
            await router.chat()
            write(path, listing(a, b, policy="round-robin", models=[{"name": "m"}]))
            await eventually(lambda: router.router.endpoints.usable_count() == 2)
            while not b.received:
                await router.chat()
            status = await router.status()
            assert (status["policy"], status["models"]) == ("round-robin", ["m"])

            write(path, '{"endpoints": [{"url": "nonsense"}]}')
            await eventually(lambda: "$.endpoints[0].url" in caplog.text)
            assert set((await router.status())["endpoints"]) == {"a", "b"}, "the mistake changed nothing"

            write(path, listing(b))
            await eventually(lambda: len(router.router.endpoints.all) == 1)
            before = len(a.received)
            for _ in range(4):
                assert (await router.chat()).headers["x-blade-endpoint"] == "b"
            assert len(a.received) == before


async def test_removed_endpoint_finishes_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    gate = asyncio.Semaphore(1)
    async with MockEngine("a", gate=gate, tokens=3) as a, MockEngine("b") as b:
        write(path, listing(a))
        async with serving(wait=False, config=path) as router:
            await eventually(lambda: router.router.endpoints.usable_count() == 1)
            reader, writer = await raw_post(router.port, question(stream=True))
            await reader.readuntil(a.event(0))
            write(path, listing(b))
            await eventually(lambda: [endpoint.name for endpoint in router.router.endpoints.all] == ["b"])
            gate.release()
            gate.release()
            await reader.readuntil(b"[DONE]")
            await eventually(lambda: not a.open, "its connections are closed")
            writer.close()


async def test_service_may_appear_later(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    async with MockEngine("a") as a, serving(wait=False, service=path) as router:
        response = await router.chat()
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        write(path, listing(a))
        assert (await router.chat()).status_code == 200, "nothing is refused before the file was read again"
        path.unlink()  # a file that is gone says nothing about the engines
        await asyncio.sleep(0.5)
        assert (await router.chat()).status_code == 200


async def test_endpoint_keeps_its_record_when_only_its_name_changes(tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    async with MockEngine("a") as a:
        write(path, listing(a))
        async with serving(wait=False, config=path) as router:
            await eventually(lambda: router.router.endpoints.usable_count() == 1)
            endpoint = router.router.endpoints.all[0]
            a.name = "renamed"
            write(path, listing(a))
            await eventually(lambda: endpoint.name == "renamed")
            assert router.router.endpoints.all == [endpoint]
            assert endpoint.health.up is True


async def test_bytes_that_are_no_text_end_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = tmp_path / "router.json"
    async with MockEngine("a") as a, MockEngine("b") as b:
        write(config, listing(a))
        async with serving(endpoints=(), config=config, wait=False) as router:
            config.write_bytes(b'{"policy": "\xff"}')
            await eventually(lambda: "router.json: 'utf-8'" in caplog.text)
            write(config, listing(a, b))
            await eventually(lambda: len(router.router.endpoints.all) == 2)


async def test_what_cannot_be_applied_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("blade_router.config.sources.RETRY_SECONDS", 0.01)
    config = tmp_path / "router.json"
    write(config, {})
    configuration = Configuration(config=WatchedFile(config))
    configuration.start()
    applied: list[str] = []

    def apply(new: RouterConfig) -> None:
        applied.append(new.policy)
        if len(applied) < 3:
            raise RuntimeError("not yet")

    write(config, {"policy": "random"})
    watching = asyncio.create_task(configuration.watch(apply))
    await eventually(lambda: len(applied) == 3)
    write(config, {"policy": "prefix"})
    await eventually(lambda: len(applied) == 4)
    watching.cancel()
    assert applied == ["random"] * 3 + ["prefix"]
    assert caplog.text.count("could not be applied") == 1


async def test_a_watch_that_fails_is_restarted_and_disturbs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blade_router.router.RETRY_SECONDS", 0.01)
    config, replica_file = tmp_path / "router.json", tmp_path / "peers.json"
    calls = 0

    async def fail(self: FileReplicas, on_change: Any) -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError("it broke")

    monkeypatch.setattr(FileReplicas, "watch", fail)
    async with MockEngine("a") as a:
        write(config, {})
        async with serving(endpoints=(), config=config, peers=replica_file, wait=False) as router:
            await eventually(lambda: calls > 1)
            write(config, listing(a))
            await eventually(lambda: router.router.endpoints.all)


async def test_a_cost_function_that_cannot_be_imported_leaves_nothing_half_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken_cost.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = tmp_path / "router.json"
    async with MockEngine("a") as a:
        write(config, {})
        async with serving(endpoints=(), config=config, cost="broken_cost:cost", wait=False) as router:
            write(config, listing(a, policy="external"))
            await eventually(lambda: router.router.endpoints.all)
            assert router.router.proxy.policy.name == "auto"
            assert "ZeroDivisionError" in caplog.text
