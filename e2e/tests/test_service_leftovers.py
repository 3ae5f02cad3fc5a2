"""What a service no longer needs is deleted, and what was never the operator's stays; without engines."""

from __future__ import annotations

from e2e.support.service import Service


def names(service: Service, kind: str) -> set[str]:
    return {obj["metadata"]["name"] for obj in service.objects(kind)}


def test_objects_no_longer_needed_are_deleted(private: Service) -> None:
    """Old revisions beyond their limit, network policies that are switched off."""
    rollout = {"revisionHistoryLimit": 0}
    private.apply(replicas=0, rollout=rollout)
    private.until(lambda: private.condition("Ready").get("reason") == "ScaledToZero", "made")
    first = names(private, "controllerrevisions")
    assert len(first) == 1
    assert names(private, "networkpolicies") == {"demo-engine", "demo-router"}

    private.apply(replicas=0, rollout=rollout, engine={"contextLength": 128}, security={"networkPolicy": False})
    private.until(lambda: not names(private, "networkpolicies"), "open to everyone")
    private.until(lambda: len(names(private, "controllerrevisions") - first) == 1, "at its second revision")
    private.until(lambda: not names(private, "controllerrevisions") & first, "without its first revision")
    private.until(lambda: not names(private, "deployments") & first, "without its first Deployment")


def test_an_object_of_somebody_else_is_not_taken_over(private: Service) -> None:
    private.kubectl("create", "configmap", "demo-router", "--from-literal=mine=yes")
    private.apply(replicas=0)

    def reported() -> bool:
        return private.condition("Degraded").get("reason") == "ApplyRejected"

    private.until(reported, "reporting that the name is taken")
    assert "demo-router" in private.condition("Degraded")["message"]
    assert private.json("get", "configmap", "demo-router")["data"] == {"mine": "yes"}

    private.kubectl("delete", "configmap", "demo-router")
    private.until(lambda: private.condition("Degraded").get("status") == "False", "well again", timeout=150)
    assert "router.json" in private.json("get", "configmap", "demo-router")["data"]
