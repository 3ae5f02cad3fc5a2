"""``https:`` URLs: the address is pinned, and the certificate is verified for the name."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from engine_support.fetching.network import Rerouted, ScriptedResolver
from engine_support.fetching.servers import ok, redirect, serving
from operator_support.tls import Authority

from blade_llm.multimodal.fetching import Fetcher, FetchOptions, MediaError

PICTURE = b"\x89PNG picture"
PUBLIC = "93.184.215.14"
NAMES = {name: [[PUBLIC]] for name in ("cdn.example", "other.example")}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "authority", "test")


@pytest.fixture
def server_tls(authority: Authority, tmp_path: Path) -> ssl.SSLContext:
    authority.server(tmp_path, "cdn.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    return context


@pytest.fixture
def client_tls(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.file))


async def test_name_and_address(server_tls: ssl.SSLContext, client_tls: ssl.SSLContext) -> None:
    asked: list[str | None] = []
    server_tls.sni_callback = lambda _socket, name, _context: asked.append(name)
    async with serving(ok(PICTURE), tls=server_tls) as server:
        backend = Rerouted({(PUBLIC, 443): server.port})
        fetcher = Fetcher(FetchOptions(), resolver=ScriptedResolver(NAMES), backend=backend, tls=client_tls)
        assert await fetcher.fetch("https://cdn.example/picture.png") == PICTURE
        assert await fetcher.fetch("https://CDN.example.:443/picture.png") == PICTURE
    assert asked == ["cdn.example"] * 2
    assert "Host: cdn.example\r\n" in server.requests[0]
    assert backend.connected == [(PUBLIC, 443)] * 2


async def test_certificates_are_verified(server_tls: ssl.SSLContext, client_tls: ssl.SSLContext) -> None:
    async with serving(ok(PICTURE), tls=server_tls) as server:
        backend = Rerouted({(PUBLIC, 443): server.port})
        resolver = ScriptedResolver(NAMES)
        with pytest.raises(MediaError, match=r"certificate is not valid: .*other\.example") as raised:
            await Fetcher(FetchOptions(), resolver=resolver, backend=backend, tls=client_tls).fetch(
                "https://other.example/"
            )
        assert raised.value.kind == "unavailable"
        with pytest.raises(MediaError, match="certificate is not valid: "):  # of an authority nobody knows
            await Fetcher(FetchOptions(), resolver=resolver, backend=backend).fetch("https://cdn.example/")
    assert not server.requests


async def test_a_server_without_tls(client_tls: ssl.SSLContext) -> None:
    async def respond(writer: asyncio.StreamWriter) -> None:
        raise AssertionError("a request came")

    async with serving(respond) as server:
        backend = Rerouted({(PUBLIC, 443): server.port})
        options = FetchOptions(connect_timeout_s=0.3)
        fetcher = Fetcher(options, resolver=ScriptedResolver(NAMES), backend=backend, tls=client_tls)
        with pytest.raises(MediaError, match=r"no connection|TLS fails"):
            await fetcher.fetch("https://cdn.example/")
        await server.until_open(0)


async def test_a_redirect_away_from_tls_is_refused(server_tls: ssl.SSLContext, client_tls: ssl.SSLContext) -> None:
    async with serving(redirect("http://cdn.example/"), tls=server_tls) as server:
        backend = Rerouted({(PUBLIC, 443): server.port, (PUBLIC, 80): server.port})
        fetcher = Fetcher(FetchOptions(), resolver=ScriptedResolver(NAMES), backend=backend, tls=client_tls)
        with pytest.raises(MediaError, match="does not lead to http:") as raised:
            await fetcher.fetch("https://cdn.example/")
    assert raised.value.kind == "refused"
    assert backend.connected == [(PUBLIC, 443)]
