"""A new revision gets a share of real requests: as it is no worse it replaces the stable one, else it is aborted."""

from __future__ import annotations

import json
from typing import Any

from blade_protocol.labels import REVISION
from e2e.support.load import Load
from e2e.support.prompts import RESPONSES
from e2e.support.service import Service
from e2e.tests.conftest import CHAT_TEMPLATE

CANARY = {"steps": [40], "interval": "20s", "minRequests": 100, "latencyTolerance": 50}
BROKEN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""A chat template without the marks of whose turn it is, to which the demo model has nothing to say."""
MINUTES = 300.0
"""Seconds that a canary may take on a small node."""


def patch(service: Service, **spec: Any) -> None:
    service.kubectl("patch", "llm", service.name, "--type=merge", "-p", json.dumps({"spec": spec}))


def phase(service: Service) -> str:
    return str((service.status().get("canary") or {}).get("phase", ""))


def test_an_equal_canary_replaces_the_stable_one(demo: Service) -> None:
    stable = demo.status()["revision"]["current"]
    patch(demo, rollout={"canary": CANARY})
    try:
        with demo.reach() as url, Load(url) as load:
            patch(demo, engine={"maxNumSeqs": 7})
            demo.until(lambda: phase(demo) == "Running", "with a canary that has a share", 180)
            assert demo.status()["canary"]["stable"] == stable
            demo.wait_until_converged(timeout=MINUTES)
            assert demo.status()["revision"]["current"] != stable
            assert demo.condition("RolloutAborted") == {}
            load.more()
        assert load.bad == []
    finally:
        patch(demo, rollout={"canary": None}, engine={"maxNumSeqs": 8})
        demo.wait_until_converged()


def test_a_canary_with_a_broken_chat_template_is_aborted(demo: Service) -> None:
    stable = demo.status()["revision"]["current"]
    patch(demo, rollout={"canary": CANARY})
    try:
        with demo.reach() as url, Load(url) as load:
            # Who gets an answer of the canary gets all of it, and that is nothing.
            load.models = {"": {prompt: (response, "") for prompt, response in RESPONSES.items()}}
            patch(demo, engine={"chatTemplate": {"inline": BROKEN}})
            demo.until(lambda: phase(demo) == "Aborted", "with an aborted canary", MINUTES)
            told = demo.condition("RolloutAborted")
            assert (told["status"], told["reason"]) == ("True", "WorseThanStable")
            assert "lengths of" in told["message"]
            demo.until(lambda: running(demo) == {stable}, "on the stable revision alone")
            load.models = {"": {prompt: (response,) for prompt, response in RESPONSES.items()}}
            load.more(40)  # a response of the canary would be a bad one
        assert load.bad == []
        empty = [result for result in load.good if not result.text]
        assert 0 < len(empty) < len(load.good) / 2
        assert demo.status()["canary"]["stable"] == stable
    finally:
        patch(demo, rollout={"canary": None}, engine={"chatTemplate": {"inline": CHAT_TEMPLATE}})
        demo.wait_until_converged()
    assert demo.status()["revision"]["current"] == stable


def running(service: Service) -> set[str]:
    """Revisions of the engines that are there."""
    return {pod["metadata"]["labels"][REVISION] for pod in service.pods("engine")}
