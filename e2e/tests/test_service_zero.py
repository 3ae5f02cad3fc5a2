"""Zero and back on a cluster: a service without requests sleeps, and the requests that wake it are all answered."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from e2e.support.load import chat, client
from e2e.support.prompts import RESPONSES, ChatResult
from e2e.support.service import Service
from e2e.tests.conftest import DEMO

SCALING: dict[str, Any] = {
    "mode": "Concurrency", "min": 0, "max": 1, "target": {"concurrency": 64}, "idleToZero": "10s"
}  # fmt: skip
REQUESTS = 32


def test_a_service_sleeps_and_wakes_without_an_error(demo: Service) -> None:
    demo.apply(**DEMO, scaling=SCALING)
    with demo.reach() as url, ThreadPoolExecutor(REQUESTS) as pool:
        asleep(demo)
        assert "Sleeping" in demo.kubectl("get", "llm", "demo")
        prompts = [prompt for _ in range(REQUESTS) for prompt in RESPONSES][:REQUESTS]
        given = list(pool.map(lambda number: send(url, prompts[number], bool(number % 2)), range(REQUESTS)))
        assert [(result.outcome, result.detail) for result in given] == [("ok", "")] * REQUESTS
        # It was Ready all the time, and says what happened.
        assert demo.condition("Ready")["status"] == "True"
        demo.until(lambda: {"Sleeping", "Waking", "Woke"} <= reasons(demo), "telling of it", 30)
        asleep(demo)


def test_an_engine_on_standby_answers_the_request_that_wakes_the_service(demo: Service) -> None:
    demo.apply(**DEMO, scaling=SCALING | {"standby": 1})
    with demo.reach() as url:
        demo.until(lambda: demo.status()["phase"] == "Sleeping" and len(demo.pods("engine")) == 1, "asleep", 180)
        demo.until(lambda: demo.status()["scaling"].get("standby") == 1, "warm", 60)
        [spare] = [pod["metadata"]["name"] for pod in demo.pods("engine")]
        result = send(url, next(iter(RESPONSES)), stream=False)
        assert (result.outcome, result.detail) == ("ok", "")
        demo.until(lambda: {"Standby", "StandbyWoken", "Woke"} <= reasons(demo), "telling of it", 30)
        assert demo.status()["readyReplicas"] >= 1
        assert spare in {pod["metadata"]["name"] for pod in demo.pods("engine")}


def asleep(demo: Service) -> None:
    demo.until(lambda: demo.status()["phase"] == "Sleeping" and not demo.pods("engine"), "asleep", 120)
    ready = demo.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("True", "Sleeping")


def send(url: str, prompt: str, stream: bool) -> ChatResult:
    with client() as http:
        return chat(http, url, prompt, stream=stream)


def reasons(demo: Service) -> set[str]:
    """Of the Events about the service."""
    events = demo.json("get", "events", "--field-selector", "involvedObject.kind=LLMService")
    return {event["reason"] for event in events["items"]}
