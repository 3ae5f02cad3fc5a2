"""Scaling by load with real processes: the real router measures it, the real control loop decides."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from operator_support.loop import Loop, loop, manifest

SCALING = {
    "mode": "Concurrency",
    "max": 4,
    "target": {"concurrency": 2},
    "behavior": {"downDelay": "1s", "downPercent": 100},
}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Loop]:
    with loop(tmp_path, real_router=True) as each:
        yield each


@pytest.mark.soak
def test_engines_follow_the_requests_up_and_down_without_one_that_fails(running: Loop, tmp_path: Path) -> None:
    steer = tmp_path / "steer"
    steer.mkdir()
    running.environment["FAKE_ENGINE"] = f"--steer {steer}"
    running.start("-f", str(manifest(tmp_path, scaling=SCALING)))
    running.until(lambda: running.ready("qwen"), 60)
    url = running.service("qwen")["status"]["url"]
    hold = steer / "hold"
    hold.touch()

    def ask(number: int) -> int:
        body = {"model": "qwen", "messages": [{"role": "user", "content": str(number)}]}
        return httpx.post(f"{url}/chat/completions", json=body, timeout=120, trust_env=False).status_code

    with ThreadPoolExecutor(6) as pool:
        statuses = [pool.submit(ask, number) for number in range(6)]
        running.until(lambda: running.ready("qwen", 3), 60)
        scaling = running.service("qwen")["status"]["scaling"]
        assert (scaling["mode"], scaling["replicas"]) == ("Concurrency", 3)
        assert "1 -> 3: 6 requests at engines and 0 waiting, 2 an engine" in scaling["changes"][-1]
        assert running.condition("qwen", "Scaling") == "True"
        hold.unlink()
        assert [status.result() for status in statuses] == [200] * 6
    running.until(lambda: running.service("qwen")["status"]["replicas"] == 1, 60)
    page = running.command("describe", "llm", "qwen")
    assert "Replicas:    1 desired" in page
    assert "-> 1: 0 requests at engines" in page[page.index("Scaling:") :]
    reasons = {event["reason"] for event in running.objects("Event")}
    assert {"ScaledUp", "ScaledDown"} <= reasons
