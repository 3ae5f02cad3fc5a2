"""The operator's report of the service: who may send one, what is taken, and who sees how much of it."""

import json
from pathlib import Path

import pytest
from router_support.engine import MockEngine
from router_support.keys import SECRET, content, key, knows, write
from router_support.serving import serving
from router_support.ui import report, viewing

from blade_protocol import environment, headers
from blade_protocol.limits import SERVICE_REPORT_BYTES
from blade_router.ui.service_report import ServiceReport

PATH = "/internal/service"


async def test_viewers_get_it_at_once_and_when_it_changes(engine: MockEngine) -> None:
    async with serving(engine) as router:
        assert (await router.admin.post(PATH, content=json.dumps(report(), indent=1))).status_code == 204
        async with viewing(router.client) as viewer:
            await viewer.next()
            assert viewer.state["service"] == report()
            await router.admin.post(PATH, json=report(1001.0, phase="Degraded"))
            await viewer.until(lambda state: state["service"]["reported"] == 1001.0)
            assert viewer.state["service"]["object"]["status"]["phase"] == "Degraded"


async def test_an_older_one_changes_nothing(engine: MockEngine) -> None:
    async with serving(engine) as router:
        await router.admin.post(PATH, json=report(1001.0))
        await router.admin.post(PATH, json=report(1000.0, phase="Failed"))
        async with viewing(router.client) as viewer:
            await viewer.next()
            assert viewer.state["service"]["object"]["status"]["phase"] == "Ready"


async def test_only_holders_of_the_token_may_send_one(
    engine: MockEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("t0ken")
    monkeypatch.setenv(environment.INTERNAL_TOKEN_FILE, str(tmp_path / "token"))
    async with serving(engine) as router:
        assert (await router.admin.post(PATH, json=report())).status_code == 403
        token = {headers.INTERNAL_TOKEN: "t0ken"}
        assert (await router.admin.post(PATH, json=report(), headers=token)).status_code == 204
        assert (await router.client.post(PATH, json=report(), headers=token)).status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"[]", 400, "this is no report of a service"),
        (json.dumps({"reported": 1.0, "object": {}, "pods": [], "events": []}).encode(), 400, "no report of a service"),
        (b" " * (SERVICE_REPORT_BYTES + 1), 413, "a report has at most 262144 bytes"),
    ],
)
async def test_what_is_no_report_is_refused(engine: MockEngine, body: bytes, status: int, message: str) -> None:
    async with serving(engine) as router:
        response = await router.admin.post(PATH, content=body)
        assert response.status_code == status
        assert message in response.json()["error"]["message"]


async def test_a_key_sees_how_the_service_is_and_nothing_of_the_cluster(engine: MockEngine, keys_file: Path) -> None:
    write(keys_file, content(key(), key("ops", "sk-ops", web_ui="all")))
    async with serving(engine, keys=keys_file) as router:
        await knows(router, "ops", "sk-ops")
        await router.admin.post(PATH, json=report())
        async with viewing(router.client, SECRET) as viewer, viewing(router.client, "sk-ops") as ops:
            await viewer.next()
            await ops.next()
            assert ops.state["service"] == report()
            seen = viewer.state["service"]
            (condition,) = seen["object"]["status"]["conditions"]
            assert (condition["type"], condition["status"], condition["reason"]) == ("Ready", "True", "AllReady")
            assert seen["object"]["metadata"]["name"] == "qwen"
            assert (seen["object"]["spec"], seen["pods"], seen["events"]) == ({}, [], [])
            assert "node-7" not in json.dumps(seen)


def test_a_clock_that_is_ahead_does_not_silence_the_next_report() -> None:
    found = ServiceReport()
    found.take(json.dumps(report(9e12, phase="Failed")).encode())
    found.reported_at -= 3600  # an hour later
    found.take(json.dumps(report(found.reported_at + 1, phase="Ready")).encode())
    assert found.full is not None
    assert b'"phase":"Ready"' in found.full


def test_line_ends_do_not_break_the_event() -> None:
    found = ServiceReport()
    found.take(json.dumps(report(), indent=2).encode())
    assert found.full is not None
    assert b"\n" not in found.full
