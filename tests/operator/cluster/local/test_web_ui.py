"""The web UI of a service on the local runtime: the stream that it shows has what the operator knows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from operator_support.loop import Loop, loop, manifest


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Loop]:
    with loop(tmp_path, real_router=True) as each:
        yield each


def _states(port: int) -> Iterator[dict[str, Any]]:
    """What the stream says: everything, then what of it has changed."""
    state: dict[str, Any] = {}
    with httpx.stream("GET", f"http://127.0.0.1:{port}/ui/stream", trust_env=False, timeout=20) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: "):
                state |= json.loads(line.removeprefix("data: "))
                yield state


def test_the_stream_has_the_conditions_the_pods_and_the_events_of_the_service(running: Loop, tmp_path: Path) -> None:
    running.start("-f", str(manifest(tmp_path)))
    running.until(lambda: running.ready("qwen"))
    for state in _states(running.port):
        service = state["service"]
        if service is not None and service["object"]["status"].get("phase") == "Ready":
            break
    known = running.service("qwen")
    assert service["object"]["metadata"]["name"] == "qwen"
    assert service["object"]["spec"]["model"] == known["spec"]["model"]
    conditions = {each["type"]: each["status"] for each in service["object"]["status"]["conditions"]}
    assert conditions == {each["type"]: each["status"] for each in known["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    roles = {pod["role"]: pod for pod in service["pods"]}
    assert set(roles) == {"engine", "router"}
    assert roles["engine"]["ready"]
    assert roles["engine"]["revision"] == known["status"]["revision"]["current"]
    assert "Ready" in {event["reason"] for event in service["events"]}
    endpoints = [endpoint for endpoint in state["endpoints"] if endpoint["state"] == "ready"]
    assert [endpoint["name"] for endpoint in endpoints] == [roles["engine"]["name"]]


def test_a_service_may_have_none(running: Loop, tmp_path: Path) -> None:
    running.start("-f", str(manifest(tmp_path, router={"ui": {"enabled": False}})))
    running.until(lambda: running.ready("qwen"))
    assert httpx.get(f"http://127.0.0.1:{running.port}/ui/stream", trust_env=False).status_code == 404
