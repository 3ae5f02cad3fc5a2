"""How often a probe looks, and what it counts."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from blade_operator.cluster.local import probes
from blade_operator.cluster.local.probes import Probe, ask, follow

CERTIFICATE = Path(__file__).parents[1] / "router_support" / "tls" / "server.pem"


async def test_an_eager_probe_looks_more_often_but_counts_a_failure_once_a_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = 0

    async def ask(_: Probe) -> str:
        nonlocal asked
        asked += 1
        return "not yet"

    monkeypatch.setattr(probes, "ask", ask)
    monkeypatch.setattr(probes, "_EAGER_PERIOD", 0.01)
    probe = Probe(path="/", port=1, delay=0, period=0.2, timeout=1, success=1, failure=2)
    async with asyncio.timeout(10):
        await follow(probe, lambda good, why: False, eager=True)
    assert asked > 3  # two of them counted


async def test_a_probe_speaks_tls_where_it_is_told_and_takes_any_certificate() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        container = {
            "ports": [{"name": "http", "containerPort": port}],
            "plain": {"httpGet": {"path": "/live", "port": "http"}},
            "secure": {"httpGet": {"path": "/live", "port": "http", "scheme": "HTTPS"}},
        }
        plain, secure = Probe.of(container, "plain"), Probe.of(container, "secure")
        assert plain is not None
        assert secure is not None
        assert await ask(secure) is None
        assert await ask(plain) is not None
