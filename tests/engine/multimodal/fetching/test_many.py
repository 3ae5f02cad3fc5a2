"""Many fetches at once: bounds, deduplication, cancellation."""

from __future__ import annotations

import asyncio
import base64
import threading
from dataclasses import replace
from pathlib import Path

import httpcore
import pytest
from engine_support.fetching.network import Rerouted, ScriptedResolver
from engine_support.fetching.servers import RawServer, answering, ok, serving

from blade_llm.multimodal.fetching import Fetcher, FetchOptions, MediaError
from blade_llm.multimodal.fetching import fetcher as module
from blade_llm.multimodal.fetching.allowance import HeldBytes

PICTURE = b"\x89PNG picture"


def local(*servers: RawServer, **changed: object) -> FetchOptions:
    ports = tuple(server.port for server in servers) or (80,)
    options = FetchOptions(private_media_domains=("127.0.0.1",), allowed_media_ports=ports)
    return replace(options, **changed)  # type: ignore[arg-type]


class Held:
    """Responses that wait until they are released."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def __call__(self, writer: asyncio.StreamWriter) -> None:
        await self.release.wait()
        await ok(PICTURE)(writer)


class CountedBytes(HeldBytes):
    """Tells when so many bytes are held."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        super().__init__(1 << 20)

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        self._changed.set()

    async def reached(self, count: int) -> None:
        while self.held < count:
            self._changed.clear()
            await self._changed.wait()


async def test_a_thousand_requests_are_bounded_together() -> None:
    active = most = 0

    async def respond(writer: asyncio.StreamWriter) -> None:
        nonlocal active, most
        active += 1
        most = max(most, active)
        await asyncio.sleep(0.001)
        active -= 1
        await ok(PICTURE)(writer)

    async with serving(respond) as server:
        fetcher = Fetcher(local(server, max_concurrency=20))
        done = await asyncio.gather(*(fetcher.fetch(f"{server.url}?{number}") for number in range(1000)))
        assert done == [PICTURE] * 1000
        assert fetcher._held.held == 0
    assert server.connections == 1000
    assert most <= 20


async def test_one_request_has_its_share_only() -> None:
    held = Held()
    async with serving(held) as server:
        fetcher = Fetcher(local(server, max_concurrency=4, max_request_concurrency=3))
        many = asyncio.create_task(fetcher.fetch_all([f"{server.url}?{number}" for number in range(100)]))
        await server.until_open(3)
        another = asyncio.create_task(fetcher.fetch(server.url))
        await server.until_open(4)
        paths = sorted(head.split()[1] for head in server.requests)
        assert paths == ["/picture.png", "/picture.png?0", "/picture.png?1", "/picture.png?2"]
        held.release.set()
        assert await another == PICTURE
        assert await many == [PICTURE] * 100


async def test_a_url_that_is_there_twice_is_fetched_once() -> None:
    async with serving(ok(PICTURE)) as server:
        fetcher = Fetcher(local(server))
        url, inline = server.url, "data:;base64," + base64.b64encode(b"inline").decode()
        assert await fetcher.fetch_all([url, inline, url + "?2", url, inline, url]) == [
            PICTURE,
            b"inline",
            PICTURE,
            PICTURE,
            b"inline",
            PICTURE,
        ]
        assert server.connections == 2
        await fetcher.fetch_all([url])  # nothing is kept for the next request
        assert server.connections == 3
        assert await fetcher.fetch_all([]) == []


async def test_the_first_failure_ends_the_others() -> None:
    held = Held()
    async with serving(held) as slow, serving(answering(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")) as missing:
        fetcher = Fetcher(local(slow, missing, max_request_concurrency=2))
        urls = [slow.url, slow.url, missing.url, *(f"{slow.url}?{number}" for number in range(50))]
        with pytest.raises(MediaError, match="status 404") as raised:
            await fetcher.fetch_all(urls)
        assert raised.value.index == 2
        await slow.until_open(0)
        assert slow.connections <= 2
        assert fetcher._held.held == 0


@pytest.mark.parametrize("stage", ["head", "body"])
async def test_cancellation_closes_connections(stage: str) -> None:
    async def respond(writer: asyncio.StreamWriter) -> None:
        if stage == "body":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + bytes(500))
        await asyncio.Event().wait()

    async with serving(respond) as server:
        fetcher = Fetcher(local(server, max_concurrency=5))
        fetcher._held = held = CountedBytes()
        fetching = asyncio.create_task(fetcher.fetch_all([f"{server.url}?{number}" for number in range(20)]))
        await server.until_open(5)
        if stage == "body":
            await held.reached(5 * 500)
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        assert held.held == 0
        assert not fetcher._connections.locked()
        await server.until_open(0)
    assert server.closed_by_peer == 5
    assert server.connections == 5


async def test_cancellation_while_the_name_is_looked_up() -> None:
    class Stuck(ScriptedResolver):
        async def resolve(self, host: str, port: int) -> list[str]:
            self.asked.append(host)
            if len(self.asked) == 2:
                second.set()
            await asyncio.Event().wait()
            return []

    second = asyncio.Event()
    resolver = Stuck({})
    fetcher = Fetcher(FetchOptions(connect_timeout_s=0.1), resolver=resolver, backend=Rerouted({}))
    with pytest.raises(MediaError, match=r"no connection to its server within 0\.1 s") as raised:
        await fetcher.fetch("http://slow.example/")
    assert raised.value.kind == "timeout"
    fetching = asyncio.create_task(Fetcher(FetchOptions(), resolver=resolver).fetch("http://slow.example/"))
    await second.wait()
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching


async def test_an_address_that_does_not_accept_leaves_time_for_the_next() -> None:
    class Silent(Rerouted):
        async def connect_tcp(self, host: str, port: int, timeout: float | None = None, *_: object, **__: object):  # type: ignore[no-untyped-def]
            if host == "1.1.1.1":
                self.connected.append((host, port))
                assert timeout is not None
                await asyncio.sleep(timeout)
                raise httpcore.ConnectTimeout
            return await super().connect_tcp(host, port, timeout)

    async with serving(ok(PICTURE)) as server:
        backend = Silent({("2606::1", 80): server.port})
        resolver = ScriptedResolver({"cdn.example": [["1.1.1.1", "2606::1"]]})
        fetcher = Fetcher(FetchOptions(connect_timeout_s=2.0), resolver=resolver, backend=backend)
        assert await fetcher.fetch("http://cdn.example/") == PICTURE
    assert [host for host, _ in backend.connected] == ["1.1.1.1", "2606::1"]


async def test_a_request_has_a_deadline() -> None:
    held = Held()
    async with serving(held) as server:
        fetcher = Fetcher(local(server, max_concurrency=1, request_timeout_s=0.3))
        with pytest.raises(MediaError, match=r"longer than 0\.3 s") as raised:
            await fetcher.fetch_all([f"{server.url}?{number}" for number in range(10)])
        assert raised.value.kind == "timeout"
        await server.until_open(0)


async def test_bytes_of_a_request_and_of_all_requests() -> None:
    body = bytes(1000)
    held = Held()
    async with serving(ok(body)) as server, serving(held) as slow:
        fetcher = Fetcher(local(server, slow, max_request_bytes=2500, max_held_bytes=3500, max_request_concurrency=1))
        with pytest.raises(MediaError, match="more than 2500 bytes together") as raised:
            await fetcher.fetch_all([f"{server.url}?{number}" for number in range(3)])
        assert (raised.value.kind, raised.value.index) == ("too_large", 2)
        inline = "data:," + "a" * 1000
        holding = asyncio.create_task(fetcher.fetch_all([server.url, inline, slow.url]))
        await slow.until_open(1)
        assert fetcher._held.held == 2000
        with pytest.raises(MediaError, match="try again") as raised:
            await fetcher.fetch_all([server.url, inline])
        assert raised.value.kind == "busy"
        assert await fetcher.fetch(server.url) == body
        held.release.set()
        assert await holding == [body, b"a" * 1000, PICTURE]
        assert fetcher._held.held == 0


async def test_the_number_of_urls_is_bounded() -> None:
    with pytest.raises(MediaError, match="at most 256"):
        await Fetcher(FetchOptions()).fetch_all(["data:,a"] * 257)


async def test_files_and_long_data_are_read_in_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    for function in ("decode_data_url", "read_file_url"):
        original = getattr(module, function)

        def noted(*arguments: object, original: object = original) -> bytes:
            names.append(threading.current_thread().name)
            return original(*arguments)  # type: ignore[operator, no-any-return]

        monkeypatch.setattr(module, function, noted)
    (tmp_path / "a.png").write_bytes(PICTURE)
    fetcher = Fetcher(FetchOptions(allowed_local_media_path=(str(tmp_path),)))
    long = bytes(200_000)
    urls = [f"file://{tmp_path}/a.png", "data:;base64," + base64.b64encode(long).decode(), "DATA:,short"]
    assert await fetcher.fetch_all(urls) == [PICTURE, long, b"short"]
    await fetcher.aclose()
    assert sorted(name.rsplit("_", 1)[0] for name in names) == ["MainThread", "media-decode", "media-read"]


async def test_errors_of_data_urls_hold_none_of_their_data() -> None:
    url = "data:image/png;base64," + "QUJD" * 100 + "*"
    with pytest.raises(MediaError) as raised:
        await Fetcher(FetchOptions()).fetch_all(["data:,a", url])
    assert raised.value.index == 1
    assert "QUJD" not in str(raised.value)
    assert str(raised.value).startswith("data:image/png (423 characters): ")
