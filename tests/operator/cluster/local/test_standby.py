"""A warm pool on the local runtime: what sleeps at zero is woken without an engine's start."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from operator_support.loop import Loop, loop, manifest

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_protocol import paths

MODEL = Path(__file__).parents[4] / "examples" / "demo_model" / "model"
START = 15
"""Seconds that engines take to start."""
SCALING: dict[str, Any] = {
    "mode": "Concurrency",
    "min": 0,
    "max": 1,
    "target": {"concurrency": 1000},
    "idleToZero": "10s",
    "standby": 1,
}


@pytest.mark.soak  # e2e/tests/test_service_zero.py asks the same of a real cluster each time
def test_a_held_request_is_answered_by_the_engine_on_standby_also_after_the_operator_was_killed(tmp_path: Path) -> None:
    spec: dict[str, Any] = {
        "scaling": SCALING,
        "engine": {"env": [{"name": "FAKE_ENGINE", "value": f"--start {START}"}]},
    }
    with loop(tmp_path, real_router=True) as running:
        running.start("-f", str(manifest(tmp_path, **spec)))
        spare = _asleep(running)
        running.kill()
        running.start()
        assert _asleep(running) == spare
        url = running.service("qwen")["status"]["url"].removesuffix("/v1")
        body = {"model": "qwen", "messages": []}
        response = httpx.post(f"{url}{paths.CHAT_COMPLETIONS}", json=body, timeout=60, trust_env=False)
        assert response.status_code == 200
        assert response.headers["x-blade-endpoint"] == spare
        assert not any(podutil.is_ready(pod) for pod in _engines(running) if pod["metadata"]["name"] != spare)
        running.until(lambda: {"Sleeping", "Waking", "Woke", "Standby", "StandbyWoken"} <= _events(running))
        _asleep(running)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_waking_a_real_engine_takes_a_part_of_its_start(tmp_path: Path) -> None:
    with loop(tmp_path, real=True) as running:
        running.start("-f", str(manifest(tmp_path, model=MODEL, scaling=SCALING)))
        running.until(lambda: running.ready("qwen"), 300)
        [started, *_] = [_start_seconds(pod) for pod in _engines(running) if podutil.is_ready(pod)]
        spare = _asleep(running)
        url = running.service("qwen")["status"]["url"].removesuffix("/v1")
        body = {"model": "qwen", "messages": [{"role": "user", "content": "What does len do?"}], "max_tokens": 1}
        began = time.monotonic()
        response = httpx.post(f"{url}{paths.CHAT_COMPLETIONS}", json=body, timeout=120, trust_env=False)
        took = time.monotonic() - began
        print(f"an engine starts in {started:.0f} s, and is woken and answers in {took:.2f} s")
        assert (response.status_code, response.headers["x-blade-endpoint"]) == (200, spare)
        assert took < started


def _start_seconds(pod: Object) -> float:
    created = podutil.parse_time(pod["metadata"]["creationTimestamp"])
    ready = podutil.parse_time(podutil.condition(pod, "Ready")["lastTransitionTime"])
    assert created is not None
    assert ready is not None
    return (ready - created).total_seconds()


def _asleep(running: Loop) -> str:
    """Wait until no engine serves and one stands by, which has drained; its name."""

    def found() -> str:
        engines = _engines(running)
        if running.service("qwen").get("status", {}).get("phase") != "Sleeping" or len(engines) != 1:
            return ""
        [pod] = engines
        return str(pod["metadata"]["name"]) if podutil.stands_by(pod) and not podutil.is_ready(pod) else ""

    return running.until(found, 90)


def _engines(running: Loop) -> list[Object]:
    return [pod for pod in running.objects("Pod") if "-engine-" in pod["metadata"]["name"]]


def _events(running: Loop) -> set[str]:
    return {event["reason"] for event in running.objects("Event")}
