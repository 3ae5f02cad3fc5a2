"""``http:`` URLs: bodies, redirects, limits."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections import Counter
from dataclasses import replace

import pytest
from engine_support.fetching.network import Rerouted, ScriptedResolver
from engine_support.fetching.servers import RawServer, answering, ok, redirect, serving

from blade_llm.multimodal.fetching import Fetcher, FetchOptions, MediaError
from blade_llm.multimodal.fetching.allowance import Allowance

PICTURE = b"\x89PNG picture"
PUBLIC = "93.184.215.14"
OTHER = "151.101.1.1"
SECRET = "hunter2"


def local(*servers: RawServer, **changed: object) -> FetchOptions:
    """Options with which servers on 127.0.0.1 may be fetched from."""
    options = FetchOptions(
        private_media_domains=("127.0.0.1",),
        allowed_media_ports=tuple(server.port for server in servers),
        max_bytes=100_000,
        timeout_s=30.0,
    )
    return replace(options, **changed)  # type: ignore[arg-type]


async def refusal(fetcher: Fetcher, url: str) -> MediaError:
    with pytest.raises(MediaError) as raised:
        await fetcher.fetch(url)
    assert SECRET not in str(raised.value)
    return raised.value


async def test_bytes_and_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with serving(ok(PICTURE, "Set-Cookie: a=b")) as server:
        fetcher = Fetcher(local(server))
        assert await fetcher.fetch(server.url + "?size=1&x=ü#part") == PICTURE
        assert await fetcher.fetch(server.url) == PICTURE
        await fetcher.aclose()
    first, second = (head.split("\r\n") for head in server.requests)
    assert first[0] == "GET /picture.png?size=1&x=%C3%BC HTTP/1.1"
    assert sorted(first[1:]) == sorted(second[1:])
    assert sorted(filter(None, second[1:])) == [
        "Accept-Encoding: identity",
        "Accept: */*",
        "Connection: close",
        f"Host: 127.0.0.1:{server.port}",
        "User-Agent: BladeLLM",
    ]


@pytest.mark.parametrize(
    "parts",
    [
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"3\r\n\x89PN\r\n", b"9\r\nG picture\r\n0\r\n\r\n"],
        [b"HTTP/1.0 200 OK\r\n\r\n", PICTURE],
        [b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3, b"HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\n\r\n", PICTURE],
    ],
)
async def test_ways_to_send_a_body(parts: list[bytes]) -> None:
    async with serving(answering(*parts)) as server:
        assert await Fetcher(local(server)).fetch(server.url) == PICTURE


async def test_a_slow_body_ends_at_the_deadline() -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        while True:
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with serving(drip) as server:
        fetcher = Fetcher(local(server, timeout_s=1.0, max_bytes=2_000_000_000, max_request_bytes=2_000_000_000))
        error = await refusal(fetcher, server.url + f"?key={SECRET}")
        assert error.kind == "timeout"
        assert "after 1 s" in str(error)
        await server.until_open(0)
    assert server.closed_by_peer == 1


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nX-Endless: "])
async def test_a_head_that_never_ends(head: bytes) -> None:
    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while head:
            writer.write(b"x" * 10_000)
            await writer.drain()
        await asyncio.Event().wait()

    async with serving(respond) as server:
        error = await refusal(Fetcher(local(server, timeout_s=0.3 if not head else 30.0)), server.url)
    assert error.kind == ("unavailable" if head else "timeout")


@pytest.mark.parametrize("chunked", [True, False])
async def test_an_endless_body_ends_at_the_bound(chunked: bool) -> None:
    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + (b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"\r\n"))
        while True:
            writer.write(b"1000\r\n" + bytes(0x1000) + b"\r\n" if chunked else bytes(0x1000))
            await writer.drain()

    async with serving(respond) as server:
        error = await refusal(Fetcher(local(server)), server.url)
        assert error.kind == "too_large"
        await server.until_open(0)
    assert server.closed_by_peer == 1


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 103 x\r\n\r\n" * 5000,
        b"HTTP/1.1 200 OK\r\n" + b"a:b\r\n" * 10_000 + b"Content-Length: 1\r\n\r\nx",
    ],
)
async def test_a_head_of_many_pieces_is_refused(head: bytes) -> None:
    async with serving(answering(head, b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")) as server:
        error = await refusal(Fetcher(local(server)), server.url)
    assert (error.kind, f"more than {32 << 10} bytes" in str(error)) == ("unavailable", True)


async def test_a_body_of_tiny_chunks_is_refused_and_one_of_small_ones_is_not() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(answering(head, b"1\r\nx\r\n" * 50_000, b"0\r\n\r\n")) as server:
        error = await refusal(Fetcher(local(server)), server.url)
    assert (error.kind, "pieces of a few bytes" in str(error)) == ("unavailable", True)
    small = b"200\r\n" + b"x" * 512 + b"\r\n"
    async with serving(answering(head, b"1\r\nx\r\n" * 500, small * 10_000, b"0\r\n\r\n")) as server:
        assert await Fetcher(local(server, max_bytes=10_000_000)).fetch(server.url) == b"x" * 5_120_500


async def test_other_tasks_go_on_while_a_body_of_tiny_chunks_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is there to be read at once; without pauses no other task would run until its end."""
    turns = 0
    taken: Counter[int] = Counter()
    take = Allowance.take

    def noted(self: Allowance, count: int, url: str) -> None:
        taken[turns] += 1
        take(self, count, url)

    monkeypatch.setattr(Allowance, "take", noted)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(answering(head + b"1\r\nx\r\n" * 900 + b"0\r\n\r\n")) as server:
        fetching = asyncio.create_task(Fetcher(local(server)).fetch(server.url))
        while not fetching.done():
            turns += 1
            await asyncio.sleep(0)
        assert await fetching == b"x" * 900
    assert taken.total() == 900
    assert max(taken.values()) <= 16


async def test_a_content_length_above_the_bound_is_refused_at_once() -> None:
    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100001\r\n\r\n")
        await asyncio.Event().wait()

    async with serving(respond) as server:
        error = await refusal(Fetcher(local(server)), server.url)
    assert (error.kind, "more than 100000 bytes" in str(error)) == ("too_large", True)


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
)
async def test_broken_responses(response: bytes) -> None:
    async with serving(answering(response)) as server:
        assert (await refusal(Fetcher(local(server)), server.url)).kind == "unavailable"


async def test_a_gzip_bomb_is_not_opened() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    async with serving(ok(bomb, "content-encoding: GZip")) as server:
        error = await refusal(Fetcher(local(server)), server.url)
    assert (error.kind, "compressed" in str(error)) == ("refused", True)


@pytest.mark.parametrize("status", [201, 204, 206, 304, 400, 401, 403, 404, 500])
async def test_the_status_is_named(status: int) -> None:
    async with serving(answering(f"HTTP/1.1 {status} Reason\r\nContent-Length: 0\r\n\r\n".encode())) as server:
        error = await refusal(Fetcher(local(server)), server.url + f"?signature={SECRET}")
    assert error.kind == "unavailable"
    assert f"status {status};" in str(error)
    assert str(error).startswith(f"http://127.0.0.1 ({len(server.url) + 18} characters): ")


async def test_redirects_are_followed() -> None:
    async with serving(ok(PICTURE)) as last:
        for location in (last.url, f"//127.0.0.1:{last.port}/picture.png?a=1"):
            async with serving(redirect(location, 307)) as first:
                assert await Fetcher(local(first, last)).fetch(first.url) == PICTURE


async def test_relative_redirects_and_their_bound() -> None:
    count = 0

    async def respond(writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        await (redirect(f"next?{count}") if count % 4 else ok(PICTURE))(writer)

    async with serving(respond) as server:
        assert await Fetcher(local(server, max_redirects=3)).fetch(server.url) == PICTURE
        assert server.requests[1].startswith("GET /next?1 ")
        error = await refusal(Fetcher(local(server, max_redirects=2)), server.url)
        assert "more than 2 redirects" in str(error)
        assert len(server.requests) == 7


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("http://10.0.0.1/", "no public address"),
        ("http://127.0.0.2/", "no public address"),
        ("http://[::ffff:127.0.0.1]/", "no public address"),
        ("http://169.254.169.254/latest/meta-data/", "no public address"),
        ("http://inside.example/", "no public address"),
        ("http://cdn.example:22/", "ports"),
        (f"http://user:{SECRET}@cdn.example/", "password"),
        ("file:///etc/passwd", "http:, https: or data:"),
        ("data:,x", "http:, https: or data:"),
        ("gopher://cdn.example/", "http:, https: or data:"),
        ("http://a\tb/", "no URL"),
        ("http://cdn.example:99999999/", "ports"),
        ("http://" + "a" * 9000, "longer than"),
    ],
)
async def test_a_redirect_is_checked_as_the_url_is(location: str, reason: str) -> None:
    resolver = ScriptedResolver(
        {
            "cdn.example": [[PUBLIC]],
            "inside.example": [["10.0.0.5", "fd00::5"]],
            **{literal: [[literal]] for literal in ("10.0.0.1", "127.0.0.2", "169.254.169.254", "::ffff:7f00:1")},
            "::ffff:127.0.0.1": [["::ffff:127.0.0.1"]],
        }
    )
    async with serving(redirect(location)) as server:
        backend = Rerouted({(PUBLIC, 80): server.port})
        fetcher = Fetcher(FetchOptions(), resolver=resolver, backend=backend)
        error = await refusal(fetcher, "http://cdn.example/picture.png")
    assert reason in str(error)
    assert str(error).startswith("http://cdn.example (30 characters): ")
    assert backend.connected == [(PUBLIC, 80)]


async def test_what_a_name_resolved_to_is_what_is_connected_to() -> None:
    """A name server that answers with a public address first and with a private one afterwards gains nothing."""
    names = {"rebinding.example": [[PUBLIC], ["127.0.0.1"]]}
    async with serving(ok(PICTURE)) as public, serving(ok(b"private")) as private:
        resolver = ScriptedResolver(names)
        backend = Rerouted({(PUBLIC, 80): public.port, ("127.0.0.1", 80): private.port})
        fetcher = Fetcher(FetchOptions(), resolver=resolver, backend=backend)
        assert await fetcher.fetch("http://rebinding.example/") == PICTURE
        assert resolver.asked == ["rebinding.example"]
        assert "Host: rebinding.example\r\n" in public.requests[0]
        assert (await refusal(fetcher, "http://rebinding.example/")).kind == "refused"
        assert private.connections == 0
    assert backend.connected == [(PUBLIC, 80)]


async def test_a_redirect_to_the_same_name_is_resolved_and_checked_anew() -> None:
    names = {"rebinding.example": [[PUBLIC], ["127.0.0.1"]]}
    async with serving(redirect("/again")) as server:
        backend = Rerouted({(PUBLIC, 80): server.port, ("127.0.0.1", 80): server.port})
        fetcher = Fetcher(FetchOptions(), resolver=ScriptedResolver(names), backend=backend)
        assert (await refusal(fetcher, "http://rebinding.example/")).kind == "refused"
    assert backend.connected == [(PUBLIC, 80)]


async def test_only_public_addresses_of_a_mixed_answer_are_tried() -> None:
    names = {"mixed.example": [["::1", "10.0.0.1", "2606:2800:21f::1", OTHER, PUBLIC, "169.254.169.254"]]}
    async with serving(ok(PICTURE)) as server:
        backend = Rerouted({(PUBLIC, 80): server.port})
        fetcher = Fetcher(FetchOptions(), resolver=ScriptedResolver(names), backend=backend)
        assert await fetcher.fetch("http://mixed.example/") == PICTURE
    assert backend.connected == [("2606:2800:21f::1", 80), (OTHER, 80), (PUBLIC, 80)]


async def test_few_addresses_of_a_long_answer_are_tried() -> None:
    names = {"many.example": [[f"1.1.1.{n}" for n in range(100)] + [f"2606::{n}" for n in range(1, 100)]]}
    backend = Rerouted({})
    error = await refusal(
        Fetcher(FetchOptions(), resolver=ScriptedResolver(names), backend=backend), "http://many.example/"
    )
    assert error.kind == "unavailable"
    assert [host for host, _ in backend.connected] == ["1.1.1.0", "1.1.1.1", "2606::1", "2606::2"]


async def test_strangers_do_not_learn_which_private_names_exist(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fetcher = Fetcher(FetchOptions(), resolver=ScriptedResolver({"a.svc": [["10.1.2.3"]]}), backend=Rerouted({}))
    known, unknown = [await refusal(fetcher, f"http://{name}/?key={SECRET}") for name in ("a.svc", "b.svc")]
    assert str(known).replace("a.svc", "b.svc") == str(unknown)
    assert "addresses of a.svc: private" in caplog.text
    assert SECRET not in caplog.text


async def test_signed_urls_of_redirects_are_not_in_debug_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(ok(PICTURE)) as last, serving(redirect(f"{last.url}?signature={SECRET}")) as first:
        assert await Fetcher(local(first, last)).fetch(first.url) == PICTURE
        assert SECRET in last.requests[0]
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("", "invalid"),
        ("picture.png", "invalid"),
        ("ftp://cdn.example/", "invalid"),
        ("HTTP:cdn.example", "invalid"),
        ("http://", "invalid"),
        ("http:///picture.png", "invalid"),
        ("http://exa mple/", "invalid"),
        ("http://a..b/", "invalid"),
        ("http://ex%61mple.com/", "invalid"),
        ("http://[fe80::1%25eth0]/", "invalid"),
        ("http://" + "a." * 200 + "example/", "invalid"),
        ("http://cdn.example/\0", "invalid"),
        ("http://cdn.example/\r\nX: y", "invalid"),
        ("http://cdn.example/" + "a" * 9000, "invalid"),
        (f"http://:{SECRET}@cdn.example/", "refused"),
        (f"http://{SECRET}@cdn.example/", "refused"),
        ("http://127.0.0.1\\@cdn.example/", "refused"),
        ("http://cdn.example:8080/", "refused"),
        ("http://cdn.example:0/", "refused"),
        ("https://cdn.example:22/", "refused"),
        ("http://127.0.0.1/", "refused"),
        ("http://[::1]/", "refused"),
    ],
)
async def test_urls_that_are_not_fetched(url: str, kind: str) -> None:
    backend = Rerouted({})
    error = await refusal(Fetcher(FetchOptions(), backend=backend), url)
    assert error.kind == kind
    assert f"({len(url)} characters): " in str(error)
    assert not backend.connected


async def test_domains() -> None:
    names = {
        name: [[PUBLIC]]
        for name in ("cdn.example", "a.b.cdn.example", "evilcdn.example", "xn--bcher-kva.example", "10.0.0.1")
    }
    options = FetchOptions(allowed_media_domains=("*.CDN.example.", "Bücher.example"), private_media_domains=("*.svc",))
    async with serving(ok(PICTURE)) as server:
        backend = Rerouted({(PUBLIC, 80): server.port, ("10.0.0.1", 80): server.port})
        resolver = ScriptedResolver({**names, "s3.svc": [["10.0.0.1"]], "bad.svc": [["169.254.169.254"]]})
        fetcher = Fetcher(options, resolver=resolver, backend=backend)
        for url in (
            "http://A.b.cdn.Example./x",
            "http://bücher.example/",
            "http://xn--bcher-kva.example",
            "http://s3.svc",
        ):
            assert await fetcher.fetch(url) == PICTURE
        for host in ("cdn.example", "evilcdn.example", "10.0.0.1", "svc"):
            assert "--allowed_media_domains" in str(await refusal(fetcher, f"http://{host}/"))
        assert "no public address" in str(await refusal(fetcher, "http://bad.svc/"))


@pytest.mark.parametrize(
    "pattern", ["", "*", "*.", "http://cdn.example", "cdn.example:80", "a/b", "*.*.example", "a b"]
)
def test_patterns_that_name_no_host(pattern: str) -> None:
    with pytest.raises(ValueError, match="names no host"):
        FetchOptions(allowed_media_domains=(pattern,))


@pytest.mark.parametrize(
    "change", [{"max_bytes": 0}, {"timeout_s": -1.0}, {"allowed_media_ports": (0,)}, {"user_agent": "a\nb"}]
)
def test_options_that_cannot_be_meant(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        FetchOptions(**change)  # type: ignore[arg-type]
