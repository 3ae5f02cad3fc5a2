"""``kubectl delete llm`` drains and removes everything, at any time (a namespace: test_operator_leader.py)."""

from __future__ import annotations

import pytest

from e2e.support.load import LongStream
from e2e.support.service import Service
from e2e.support.waiting import until

LONG = 3500
"""Tokens: more than what it takes to stop all pods of a service."""


def test_delete_lets_an_open_stream_finish_and_leaves_nothing(private: Service) -> None:
    private.apply(rollout={"drainTimeout": "10m"})
    private.wait_ready()
    with private.reach() as url:
        stream = LongStream(url, LONG).first()
        private.kubectl("delete", "llm", "demo", "--wait=false")
        get = ("get", "llm", "demo", "--ignore-not-found", "-o", "name")
        until(lambda: private.kubectl(*get) == "", 30, "the LLMService itself gone")

        def leaving() -> bool:
            pods = [*private.pods("engine"), *private.pods("router")]
            return len(pods) == 2 and all("deletionTimestamp" in pod["metadata"] for pod in pods)

        until(leaving, 60, "engine and router leaving")
        assert stream.open  # all pods are terminating, and the stream continues
        result = stream.wait(300)
    assert (result.outcome, result.tokens) == ("ok", LONG), result
    # Long before the drain time-out: they leave when they are done.
    private.gone()


@pytest.mark.parametrize("moment", ["PodInitializing", "Running"])
def test_delete_while_it_starts(private: Service, moment: str) -> None:
    # A grace period that would be noticed: whatever starts ends at SIGTERM.
    private.apply(rollout={"drainTimeout": "10m"})

    def reached() -> bool:
        for pod in private.pods("engine"):
            [engine] = pod["status"].get("containerStatuses") or [{}]
            [check] = pod["status"].get("initContainerStatuses") or [{}]
            if moment == "Running":
                return "running" in engine.get("state", {})
            return "running" in check.get("state", {})
        return False

    until(reached, 60, f"an engine pod {moment}", pause=0.05)
    private.delete(timeout=60)


def test_deleted_and_made_again_at_once(private: Service) -> None:
    private.apply()
    private.wait_ready()
    before = private.get()["metadata"]["uid"]
    private.kubectl("delete", "llm", "demo")
    private.apply()
    private.wait_ready()
    after = private.get()["metadata"]["uid"]
    assert before != after
    private.wait_until_converged(1)

    def owners() -> set[str]:
        kinds = "deployments,services,configmaps,serviceaccounts,roles,rolebindings,poddisruptionbudgets,secrets"
        return {owner["uid"] for obj in private.objects(kinds) for owner in obj["metadata"]["ownerReferences"]}

    assert owners() == {after}
