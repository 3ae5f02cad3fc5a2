"""Two installations of the operator watch one namespace: one owns a service, the other says so and writes no more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blade_protocol.labels import INSTALLATION
from e2e.cluster import Cluster
from e2e.support.audit import AuditLog, Request, service_account
from e2e.support.chart import NAMESPACE, RELEASE
from e2e.support.fake_service import fake_service
from e2e.support.node import own_node
from e2e.support.operator_process import LEASE, OperatorProcess, make_accounts
from e2e.support.waiting import until

QUIET = 15.0
"""Seconds in which neither may write any more."""
INSTALLED = f"{NAMESPACE}/{RELEASE}-operator"


@pytest.fixture
def second(cluster: Cluster, operator: str, namespace: str, tmp_path: Path) -> Iterator[OperatorProcess]:
    """Another installation, with a Lease in the namespace of the test, which it watches alone."""
    [account] = make_accounts(cluster, namespace, ["second"], tmp_path, watching=[namespace])
    with OperatorProcess(cluster, account, tmp_path / "second.log", "--namespaces", namespace) as process:
        yield process


def status(cluster: Cluster, namespace: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.json("get", "llm", "shared", "-n", namespace).get("status", {})
    return found


def contested(cluster: Cluster, namespace: str) -> str:
    conditions = status(cluster, namespace).get("conditions", ())
    return next((entry["message"] for entry in conditions if entry["type"] == "Contested"), "")


def writes(log: AuditLog, user: str, namespace: str, since: int) -> list[Request]:
    """What ``user`` wrote in the namespace, apart from its own Lease and key."""
    own = ("leases", "secrets")
    requests = log.requests(user, since)
    return [each for each in requests if each.is_write and each.namespace == namespace and each.resource not in own]


def test_one_owns_a_service_and_it_can_be_handed_over(
    cluster: Cluster, operator: str, namespace: str, request: pytest.FixtureRequest
) -> None:
    own_node(cluster)
    assert cluster.audit_log is not None
    log = AuditLog(cluster.audit_log)
    cluster.apply(fake_service(namespace, "shared"), namespace=namespace)
    until(lambda: status(cluster, namespace).get("installation") == INSTALLED, 60, "the service is claimed")

    second: OperatorProcess = request.getfixturevalue("second")
    second.wait_ready()
    name = f"{namespace}/{LEASE}"
    until(lambda: f"installation {name} watches" in contested(cluster, namespace), 60, "the other one refuses")
    users = (service_account(NAMESPACE, f"{RELEASE}-operator"), second.account.user)
    assert [each.subresource for each in writes(log, users[1], namespace, 0)] == ["status"]
    mark = log.mark()
    time.sleep(QUIET)
    assert [writes(log, user, namespace, mark) for user in users] == [[], []]

    cluster.kubectl("annotate", "llm", "shared", "-n", namespace, f"{INSTALLATION}={name}")
    until(lambda: status(cluster, namespace).get("installation") == name, 60, "handed over")
    until(lambda: f"installation {INSTALLED} watches" in contested(cluster, namespace), 60, "the first one refuses")
    cluster.kubectl("scale", "llm", "shared", "-n", namespace, "--replicas=2")

    def sizes() -> list[int]:
        found = cluster.json("get", "deployments", "-n", namespace, "-l", "serving.bladellm.io/role=engine")["items"]
        return [item["spec"]["replicas"] for item in found]

    until(lambda: sizes() == [2], 60, "the new owner acts")
    time.sleep(2)
    mark = log.mark()
    time.sleep(QUIET)
    assert [writes(log, user, namespace, mark) for user in users] == [[], []]
