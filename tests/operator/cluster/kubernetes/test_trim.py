"""What is dropped of an object never changes a decision: a trimmed cluster and a whole one lead to the same plan.

The pods and Deployments are those a real kubelet and controller manager reported, see `test_status_kubernetes`.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from operator_support.mini_cluster import MiniCluster, service

from blade_operator.cluster.kubernetes.trim import trim
from blade_operator.model.objects import Object
from blade_operator.model.observed import Observed
from blade_operator.reconcile.reconcile import reconcile

FOLDER = Path(__file__).parents[2] / "status" / "recorded"
PODS: dict[str, list[Object]] = json.loads((FOLDER / "pods.json").read_text())
DEPLOYMENTS: dict[str, Object] = json.loads((FOLDER / "deployments.json").read_text())
NOW = datetime(2026, 11, 21, 20, 0, tzinfo=UTC)
HUB = {"model": {"uri": "hf://Qwen/Qwen2.5-0.5B", "tokenSecretRef": {"name": "hf"}}, "replicas": 2}


def _trimmed(observed: Observed) -> Observed:
    kept: dict[str, Any] = {"service": trim(observed.service)}
    for field in ("deployments", "pods", "services", "config_maps", "revisions", "others"):
        kept[field] = tuple(trim(obj) for obj in getattr(observed, field))
    return dataclasses.replace(observed, **kept)


def _cluster() -> MiniCluster:
    cluster = MiniCluster(service(HUB))
    cluster.now = NOW
    cluster.reconcile()
    cluster.run_controllers()
    return cluster


@pytest.mark.parametrize("story", [*PODS, *DEPLOYMENTS])
def test_a_trimmed_cluster_leads_to_the_same_plan(story: str) -> None:
    cluster = _cluster()
    for status in PODS.get(story, [{}]):
        pod = cluster.engine_pods[0]
        pod["status"] = copy.deepcopy(status)
        pod["spec"]["nodeName"] = "node1"
        for deployment in cluster.objects.values():
            if deployment["kind"] == "Deployment":
                deployment["status"] = DEPLOYMENTS.get(story, {})
        observed = cluster.observed()
        whole, small = reconcile(observed, NOW, cluster.defaults), reconcile(_trimmed(observed), NOW, cluster.defaults)
        assert small == whole
        cluster.reconcile()


def test_a_trimmed_cluster_at_rest_is_at_rest() -> None:
    cluster = _cluster()
    cluster.converge()
    plan = reconcile(_trimmed(cluster.observed()), cluster.now, cluster.defaults)
    assert (plan.apply, plan.delete, plan.status, plan.events) == ([], [], None, [])
