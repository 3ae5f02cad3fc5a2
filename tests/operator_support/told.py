"""What a service's status says, for tests of it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema

from blade_operator import pods as read
from blade_operator.spec.schema import service_schema
from operator_support.mini_cluster import MiniCluster, service

SCHEMA = jsonschema.Draft202012Validator(service_schema()["properties"]["status"])


def tell(cluster: MiniCluster) -> dict[str, Any]:
    """The status after a look, checked against the CRD's schema."""
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
    """A service whose pods exist and have not begun."""
    cluster = MiniCluster(service(spec))
    cluster.reconcile()
    cluster.control()
    return cluster


def route(cluster: MiniCluster) -> None:
    """The router's pods are ready."""
    for pod in cluster.pods:
        if read.role(pod) == "router":
            cluster.become_ready(pod)
