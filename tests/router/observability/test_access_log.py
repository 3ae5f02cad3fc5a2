"""What the access log records of a request, and what it never records."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from router_support.engine import MockEngine
from router_support.raw import BODY, connected, post
from router_support.serving import eventually, serving

from blade_router.http.accept.trusted_proxies import TrustedProxies


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_line_records_request_endpoint_and_cost(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    async with MockEngine("good") as good, MockEngine("bad", mode="reset") as bad:
        async with (
            serving(good, bad, policy="round-robin", access_log=str(path)) as router,
            connected(router.port) as client,
        ):
            for _ in range(2):
                client.send(
                    post(
                        BODY, b"authorization: Bearer secret", b"x-request-id: mine", path=b"/v1/completions?key=secret"
                    )
                )
                response = await client.response()
            client.send(post(b"{"))
            await client.response()
    first, second, refused = lines(path)
    assert "secret" not in path.read_text()
    assert "hello" not in path.read_text(), "no prompt"
    assert (first["method"], first["path"], first["status"], first["id"]) == ("POST", "/v1/completions", 200, "mine")
    assert (first["endpoint"], first["model"]) == ("good", "mock")
    assert first["bytes_in"] == len(BODY)
    assert first["bytes_out"] == len(response.body)
    assert (first["prompt_tokens"], first["completion_tokens"]) == (1, 1)
    assert 0 < first["ttft"] <= first["duration"]
    assert first["time"].endswith("Z")
    assert {first["tries"], second["tries"]} == {1, 2}
    assert {first["reason"], second["reason"]} == {"round-robin", "round-robin retry=reset"}
    assert refused["status"] == 400
    assert "endpoint" not in refused


async def test_a_client_that_left_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    gate = asyncio.Semaphore(0)
    async with MockEngine("a", gate=gate) as engine, serving(engine, access_log=str(path)) as router:
        async with connected(router.port) as client:
            client.send(post())
            await eventually(lambda: engine.active == 1)
        await eventually(path.exists)
    (line,) = lines(path)
    assert (line["status"], line["bytes_out"], line["endpoint"], line["client"]) == (499, 0, "a", "127.0.0.1")
    assert "ttft" not in line


async def test_the_client_is_who_connects_or_whom_a_trusted_proxy_reports(tmp_path: Path) -> None:
    forwarded = post(BODY, b"x-forwarded-for: 6.6.6.6, 203.0.113.9")
    for proxies, expected in (((), "127.0.0.1"), (("127.0.0.0/8",), "203.0.113.9")):
        path = tmp_path / f"{expected}.log"
        trusted = TrustedProxies.parse(proxies)
        async with MockEngine("a") as engine:
            async with serving(engine, access_log=str(path), trusted_proxies=trusted) as router:
                async with connected(router.port) as client:
                    client.send(forwarded)
                    assert (await client.response()).status == 200
        assert [line["client"] for line in lines(path)] == [expected]


async def test_a_rotated_log_is_reopened(tmp_path: Path) -> None:
    path, old = tmp_path / "access.log", tmp_path / "access.log.1"
    async with MockEngine("a") as engine, serving(engine, access_log=str(path)) as router:
        await router.chat()
        await eventually(path.exists)
        path.rename(old)
        await router.chat()
        await eventually(path.exists)
    assert len(lines(path)) == len(lines(old)) == 1


async def test_a_log_that_cannot_be_written_costs_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with MockEngine("a") as engine, serving(engine, access_log=str(tmp_path / "no" / "access.log")) as router:
        assert (await router.chat()).status_code == 200
        await eventually(lambda: "cannot be written" in caplog.text)
        assert (await router.chat()).status_code == 200
