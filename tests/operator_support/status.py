"""Helpers for tests of the status: reconcile a fake cluster and read the status of its service."""

from __future__ import annotations

import json
from typing import Any

import jsonschema

from blade_operator.model import pods as podutil
from blade_operator.spec.crd.schema import service_schema
from operator_support.mini_cluster import MiniCluster, service

SCHEMA = jsonschema.Draft202012Validator(service_schema()["properties"]["status"])


def reconciled_status(cluster: MiniCluster) -> dict[str, Any]:
    """The status after one reconcile, validated against the schema of the CRD."""
    cluster.reconcile()
    status: dict[str, Any] = cluster.service["status"]
    SCHEMA.validate(status)
    assert len(json.dumps(status)) < 32_000
    return status


def condition(status: dict[str, Any], kind: str) -> tuple[str, str, str]:
    """A condition's status, reason and message."""
    [found] = [entry for entry in status["conditions"] if entry["type"] == kind]
    return found["status"], found["reason"], found["message"]


def starting(spec: dict[str, Any] | None = None) -> MiniCluster:
    """A service whose pods exist and have not started."""
    cluster = MiniCluster(service(spec))
    cluster.reconcile()
    cluster.run_controllers()
    return cluster


def make_routers_ready(cluster: MiniCluster) -> None:
    """Make the router pods ready."""
    for pod in cluster.pods:
        if podutil.role(pod) == "router":
            cluster.become_ready(pod)
