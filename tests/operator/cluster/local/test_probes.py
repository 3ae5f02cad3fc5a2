"""How often a probe runs, and which failures it counts."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from blade_operator.cluster.local import probes
from blade_operator.cluster.local.probes import Probe, run_once, watch

CERTIFICATE = Path(__file__).parents[3] / "router_support" / "tls" / "server.pem"


async def test_an_eager_probe_runs_more_often_but_counts_a_failure_once_a_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = 0

    async def fail(_: Probe) -> str:
        nonlocal runs
        runs += 1
        return "not yet"

    monkeypatch.setattr(probes, "run_once", fail)
    monkeypatch.setattr(probes, "_EAGER_PERIOD", 0.01)
    probe = Probe(path="/", port=1, delay=0, period=0.2, timeout=1, success=1, failure=2)
    async with asyncio.timeout(10):
        await watch(probe, lambda good, why: False, eager=True)
    assert runs > 3  # two of them counted


async def test_an_https_probe_accepts_any_certificate() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        container = {
            "ports": [{"name": "http", "containerPort": port}],
            "plain": {"httpGet": {"path": "/live", "port": "http"}},
            "secure": {"httpGet": {"path": "/live", "port": "http", "scheme": "HTTPS"}},
        }
        plain, secure = Probe.of(container, "plain"), Probe.of(container, "secure")
        assert plain is not None
        assert secure is not None
        assert await run_once(secure) is None
        assert await run_once(plain) is not None
