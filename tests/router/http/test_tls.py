"""TLS towards clients, and certificates that change while the router runs."""

import asyncio
import contextlib
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from router_support.engine import MockEngine
from router_support.raw import BODY, RawClient, connected, get, post
from router_support.serving import Running, eventually, serving

from blade_router.app import main
from blade_router.arguments import parse_arguments
from blade_router.http.accept import connection_table
from blade_router.http.tls import Certificate

TLS = Path(__file__).parents[2] / "router_support" / "tls"


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    """A file with a certificate and its key, to be replaced by the test."""
    path = tmp_path / "server.pem"
    shutil.copy(TLS / "server.pem", path)
    return path


def trusting() -> ssl.SSLContext:
    """A client's context that accepts any certificate: the test checks which one it is."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@contextlib.asynccontextmanager
async def secure(router: Running, context: ssl.SSLContext | None = None) -> AsyncIterator[RawClient]:
    async with connected(router.port, ssl=context or trusting()) as client:
        yield client


async def shown(router: Running) -> str:
    """The certificate a new connection gets, as PEM."""
    async with secure(router) as client:
        der = client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return ssl.DER_cert_to_PEM_cert(der)


def certificate_of(path: Path) -> str:
    text = path.read_text()
    end = "-----END CERTIFICATE-----"
    return text[text.index("-----BEGIN CERTIFICATE") : text.index(end) + len(end)] + "\n"


async def test_everything_works_over_tls(pem: Path) -> None:
    async with MockEngine("a") as engine:
        async with serving(engine, certificate=Certificate(pem, pem), wait=False) as router:
            await eventually(lambda: router.router.endpoints.usable_count() == 1)
            async with secure(router) as client:
                stream = BODY[:-1] + b', "stream": true}'
                client.send(get(b"/live") + post() + post(stream) + get())
                responses = [await client.response()]
                assert responses[0].body == b'{"status":"ok"}'
                assert (await client.response()).status == 200
                streamed = await client.response()
                assert streamed.body == b"".join(map(engine.event, range(3))) + b"data: [DONE]\n\n"
                assert (await client.response()).status == 200
            async with secure(router) as client:
                client.send(b"GET / HTTP/1.1\r\n\r\n")
                assert (await client.response()).status == 400
                assert await client.closed() == b""
            engine.gate = asyncio.Semaphore(0)
            async with secure(router) as client:
                client.send(post())
                await eventually(lambda: engine.active == 1)
            await eventually(lambda: engine.aborted == 1, "a client that leaves is noticed")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_plain_clients_and_old_versions_are_refused(pem: Path) -> None:
    async with MockEngine("a") as engine, serving(engine, certificate=Certificate(pem, pem), wait=False) as router:
        async with connected(router.port) as client:
            client.send(get(b"/live"))
            assert b"HTTP" not in await client.closed()
        old = trusting()
        with contextlib.suppress(ValueError):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            async with secure(router, old):
                pass
        assert not router.server.connections


async def test_clients_that_never_shake_hands_keep_nobody_out(pem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"max_connections": 4, "max_connections_per_address": 0}
    async with (
        MockEngine("a") as engine,
        serving(engine, certificate=Certificate(pem, pem), wait=False, **limits) as router,
    ):
        await eventually(lambda: router.router.endpoints.usable_count() == 1)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(50):
                await stack.enter_async_context(connected(router.port))
            async with secure(router) as probe:
                probe.send(get(b"/live"))
                assert (await probe.response()).status == 200
            monkeypatch.setattr(connection_table, "STALLED_SECONDS", 0.0)
            async with secure(router) as client:
                client.send(post())
                assert (await client.response()).status == 200


async def test_a_new_certificate_is_shown_and_open_connections_stay(pem: Path) -> None:
    certificate = Certificate(pem, pem)
    async with MockEngine("a") as engine, serving(engine, certificate=certificate, wait=False) as router:
        async with secure(router) as early:
            assert await shown(router) == certificate_of(TLS / "server.pem")
            shutil.copy(TLS / "renewed.pem", pem)
            watching = asyncio.create_task(certificate.watch(0.01))
            while await shown(router) != certificate_of(TLS / "renewed.pem"):  # noqa: ASYNC110 - files are polled
                await asyncio.sleep(0.01)
            watching.cancel()
            early.send(get(b"/live"))
            assert (await early.response()).status == 200


async def test_a_broken_pair_changes_nothing(pem: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = tmp_path / "key.pem"
    shutil.copy(pem, key)
    certificate = Certificate(pem, key)
    async with MockEngine("a") as engine, serving(engine, certificate=certificate, wait=False) as router:
        for damage in (
            lambda: shutil.copy(TLS / "renewed.pem", pem),  # its key is not there yet
            lambda: pem.write_text("nonsense"),
            pem.unlink,
        ):
            damage()
            assert not certificate.refresh()
            assert "the previous one stays" in caplog.text
            caplog.clear()
            assert await shown(router) == certificate_of(TLS / "server.pem")
        shutil.copy(TLS / "renewed.pem", pem)
        shutil.copy(TLS / "renewed.pem", key)
        assert certificate.refresh()
        assert not certificate.refresh(), "once is enough"
        assert await shown(router) == certificate_of(TLS / "renewed.pem")


def test_mistakes_at_the_start_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--port", "0", "--endpoints", "http://127.0.0.1:1"]
    with pytest.raises(SystemExit):
        parse_arguments([*flags, "--tls_cert", "a"])
    assert "--tls_cert and --tls_key belong together" in capsys.readouterr().err
    missing = str(tmp_path / "absent.pem")
    with pytest.raises(SystemExit) as caught:
        main([*flags, "--tls_cert", missing, "--tls_key", missing])
    assert "No such file" in str(caught.value.code)
    (tmp_path / "odd.pem").write_text("nonsense")
    with pytest.raises(SystemExit) as caught:
        main([*flags, "--tls_cert", str(tmp_path / "odd.pem"), "--tls_key", str(tmp_path / "odd.pem")])
    assert str(caught.value.code).startswith("blade_router: --tls_cert")
