"""Sources of keys: watched while requests are served; an invalid one is named, and changes nothing."""

import asyncio
import base64
import json
from pathlib import Path

import pytest
from router_support.engine import MockEngine
from router_support.keys import HEX, SECRET, content, key, knows, post_chat, write
from router_support.kubernetes import SECRETS, FakeApi
from router_support.serving import eventually, serving

from blade_router.admission import key_sources
from blade_router.admission.key_sources import WatchedKeys
from blade_router.arguments import Options, parse_arguments
from blade_router.config.parsing import ConfigError
from blade_router.kubernetes import reflector
from blade_router.router import Router


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_sources, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(reflector, "INITIAL_BACKOFF", 0.01)


# at the start


def test_flags(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.delenv("BLADE_ENDPOINTS_DIR", raising=False)
    options = parse_arguments(
        ["--service", "a", "--service", "b", "--keys", "/k", "--keys_secret", "s", "--peers", "r", "--replicas", "2"]
    )
    assert (options.service, options.services) == (None, ("a", "b"))
    assert (options.keys, options.keys_secret, options.peers, options.replicas) == (Path("/k"), "s", "r", 2)
    assert options.cluster is not None
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    monkeypatch.setenv("BLADE_ENDPOINTS_DIR", "/endpoints")
    local = parse_arguments(["--service", "a", "--keys", "/k", "--keys_secret", "s", "--peers", "r"])
    assert (local.keys_secret, local.peers, local.cluster) == (None, Path("/endpoints/r.json"), None)
    monkeypatch.delenv("BLADE_ENDPOINTS_DIR")
    with pytest.raises(SystemExit):
        parse_arguments(["--endpoints", "http://a:1", "--keys_secret", "s"])
    assert "--keys_secret: this is no Kubernetes pod" in capsys.readouterr().err


def test_keys_must_be_there_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Router(Options(keys=tmp_path / "absent"))


# while it runs


def remove(path: Path) -> None:
    path.unlink()


async def test_keys_are_reloaded_under_load(keys_file: Path, engine: MockEngine) -> None:
    """Nobody whose key stays is refused, and limits go on counting."""
    write(keys_file, content(key(), key("counted", "sk-counted", requests_per_minute=2)))
    statuses: set[int] = set()
    async with serving(engine, keys=keys_file) as router:
        assert (await post_chat(router, "sk-counted")).status_code == 200
        running = True

        async def load() -> None:
            while running:
                statuses.add((await post_chat(router)).status_code)

        clients = [asyncio.create_task(load()) for _ in range(4)]
        for number in range(20):
            name = f"new-{number}"
            keys = (key(), key(name, f"sk-{name}"), key("counted", "sk-counted", requests_per_minute=2))
            write(keys_file, content(*keys))
            await knows(router, name, f"sk-{name}")
        running = False
        await asyncio.gather(*clients)
        assert statuses == {200}
        assert [(await post_chat(router, "sk-counted")).status_code for _ in range(2)] == [200, 429]
        write(keys_file, content(key()))
        await eventually(lambda: len(list(router.router.admission.keyring.keys)) == 1)
        assert (await post_chat(router, "sk-counted")).status_code == 401


async def test_a_request_in_flight_ends_though_its_key_is_gone(keys_file: Path, engine: MockEngine) -> None:
    write(keys_file, content(key(concurrent=1), key("b", "sk-b")))
    engine.gate = asyncio.Semaphore(0)
    async with serving(engine, keys=keys_file) as router:
        first = asyncio.create_task(post_chat(router))
        await eventually(lambda: engine.active == 1)
        write(keys_file, content(key("b", "sk-b")))
        await eventually(lambda: len(list(router.router.admission.keyring.keys)) == 1)
        engine.gate.release()
        assert (await first).status_code == 200
        assert (await post_chat(router)).status_code == 401


async def test_a_broken_file_changes_nothing(
    keys_file: Path, engine: MockEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(engine, keys=keys_file) as router:
        write(keys_file, json.dumps({"keys": [{"name": "a", "key": SECRET, "sha256": HEX}]}))
        await eventually(lambda: "$.keys[0]: expected one of" in caplog.text)
        assert (await router.status())["sources"] == {"keys": False}
        remove(keys_file)
        await eventually(lambda: "No such file" in caplog.text)
        assert (await post_chat(router)).status_code == 200
        write(keys_file, content(key("a", "sk-a")))
        await knows(router, "a", "sk-a")
        assert (await router.status())["sources"] == {"keys": True}
        assert (await post_chat(router)).status_code == 401


async def test_a_mounted_secret_is_watched(tmp_path: Path, engine: MockEngine) -> None:
    """Kubernetes swaps a symlink; the files are behind it."""
    for version, secret in (("..1", SECRET), ("..2", "sk-new")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "team-a").write_text(secret)
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "..data").symlink_to(tmp_path / "..1")
    (mounted / "team-a").symlink_to("..data/team-a")
    async with serving(engine, keys=mounted) as router:
        assert (await post_chat(router)).status_code == 200
        (mounted / "..new").symlink_to(tmp_path / "..2")
        (mounted / "..new").rename(mounted / "..data")
        await knows(router, "team-a", "sk-new")
        assert (await post_chat(router)).status_code == 401


def put_secret(api: FakeApi, **entries: str) -> None:
    data = {name: base64.b64encode(value.encode()).decode() for name, value in entries.items()}
    api.put(SECRETS, "my-keys", data=data)


async def test_a_secret_is_watched_through_the_api(
    tmp_path: Path, engine: MockEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeApi(tmp_path / "serviceaccount") as api:
        put_secret(api, **{"team-a": SECRET})
        async with serving(engine, keys_secret="my-keys", cluster=api.cluster) as router:
            assert (await post_chat(router)).status_code == 200
            put_secret(api, **{"keys.json": content(key("b", "sk-b"))})
            await knows(router, "b", "sk-b")
            assert (await post_chat(router)).status_code == 401
            put_secret(api, broken="{")
            await eventually(lambda: "Secret my-keys: broken: " in caplog.text)
            api.delete(SECRETS, "my-keys")
            await eventually(lambda: "it is not there" in caplog.text)
            assert (await post_chat(router, "sk-b")).status_code == 200, "what was known stays"


# what makes no sense


def test_bytes_that_are_no_text_are_a_mistake_like_others(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text('{"keys": []}')
    keys = WatchedKeys(tmp_path)
    assert keys.load()
    (tmp_path / "bad.json").write_bytes(b'{"keys": [{"name": "\xff"}]}')
    with pytest.raises(ConfigError, match=r"bad\.json: byte 20 is not UTF-8"):
        keys.load()
    assert keys.keys == ()
    assert not keys.live
