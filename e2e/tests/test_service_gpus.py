"""Devices by resource name and count: engines get them, and a status that says so when there are no more."""

from __future__ import annotations

import json

import pytest

from e2e.cluster.base import Cluster
from e2e.support.images import Images
from e2e.support.restricted import restricted_pod
from e2e.support.service import Service, is_ready

GPU = "nvidia.com/gpu"


def test_engines_get_gpus_and_the_status_reports_when_none_are_left(
    cluster: Cluster, private: Service, images: Images
) -> None:
    nodes = cluster.json("get", "nodes")["items"]
    there = sum(int(node["status"]["allocatable"].get(GPU, 0)) for node in nodes)
    if there < 2:
        pytest.skip(f"no node has {GPU}")
    # Others have all but one of them.
    resources = {"limits": {GPU: str(there - 1)}}
    others = restricted_pod("others", images.operator, ["sleep", "3600"], resources=resources)
    cluster.apply(others, namespace=private.namespace)
    private.kubectl("wait", "--for=condition=Ready", "pod/others", "--timeout=60s")

    private.apply(engine={"gpus": {"count": 1}}, replicas=3)
    private.until(lambda: len([pod for pod in private.pods("engine") if is_ready(pod)]) == 1, "with one engine")
    pods = private.pods("engine")
    assert len(pods) == 3
    for pod in pods:
        for container in [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]:
            assert container["resources"]["limits"][GPU] == "1"

    def reported() -> bool:
        return len(private.status().get("failures", ())) == 2

    private.until(reported, "reporting the two without a GPU")
    status = private.status()
    for failure in status["failures"]:
        assert failure["reason"] == "Unschedulable"
        assert f"Insufficient {GPU}" in failure["message"]
    ready, progressing = private.condition("Ready"), private.condition("Progressing")
    assert ready["status"] == "False"
    assert "1 of 3 engines ready" in ready["message"]
    assert f"Insufficient {GPU}" in ready["message"]
    assert (progressing["status"], progressing["reason"]) == ("False", "Stalled")
    assert private.kubectl("get", "llm", "demo", "-o", "jsonpath={.spec.engine.gpus}") == json.dumps(
        {
            "count": 1,
            "customAllReduce": False,
            "expertParallel": False,
            "nodes": 1,
            "pipelineParallel": 1,
            "resource": GPU,
        },
        separators=(",", ":"),
    )

    # As many as there are: all is well.
    private.kubectl("scale", "llm", "demo", "--replicas=1")
    private.wait_until_converged(1)
    assert "failures" not in private.status()
