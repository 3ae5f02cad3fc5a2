"""Runs after all other tests: what the operator may do and what it did in them, from the API server's audit log.

A verb that no test made the operator use is one it should not have.
"""

from __future__ import annotations

import pytest
import yaml

from e2e.cluster import Cluster
from e2e.support.audit import AuditLog, service_account
from e2e.support.chart import CHART, NAMESPACE, RELEASE

Permission = tuple[str, str, str]
"""API group, resource with its subresource, verb."""

TO_GRANT = {
    ("discovery.k8s.io", "endpointslices", "list"),
    ("discovery.k8s.io", "endpointslices", "watch"),
    ("", "secrets", "list"),
    ("", "secrets", "watch"),
}
"""Held because nobody may grant what they do not hold; routers use them."""
RARE = {("", "secrets", "update")}
"""Used after a change of the root key only, which no test of a whole cluster makes."""
FOREIGN = {
    ("leaderworkerset.x-k8s.io", "leaderworkersets", verb) for verb in ("list", "watch", "create", "patch", "delete")
}
"""Of a kind that this cluster does not have."""
EXTERNAL_METRICS = {("authorization.k8s.io", "subjectaccessreviews", "create"), ("", "configmaps", "get")}
"""With ``externalMetrics.enabled``, as in test_hpa.py; the ConfigMap is one of kube-system."""
OWN_NAMESPACE = {
    ("coordination.k8s.io", "leases", "create"),
    ("coordination.k8s.io", "leases", "get"),
    ("coordination.k8s.io", "leases", "update"),
    ("", "secrets", "get"),
}


def granted() -> set[Permission]:
    rules = [rule for file in (CHART / "files").glob("rules*.yaml") for rule in yaml.safe_load(file.read_text())]
    everywhere = {
        (group, name, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for name in rule["resources"]
        for verb in rule["verbs"]
    }
    return everywhere | OWN_NAMESPACE | EXTERNAL_METRICS


@pytest.fixture(scope="module")
def status_codes(cluster: Cluster, operator: str) -> dict[Permission, set[int]]:
    """HTTP status codes of all its requests for resources, by permission."""
    if cluster.audit_log is None:
        pytest.skip("this cluster's audit log cannot be read")
    found: dict[Permission, set[int]] = {}
    for request in AuditLog(cluster.audit_log).requests(service_account(NAMESPACE, f"{RELEASE}-operator")):
        if request.resource:
            name = "/".join(part for part in (request.resource, request.subresource) if part)
            found.setdefault((request.group, name, request.verb), set()).add(request.code)
    return found


def test_every_verb_granted_is_used(status_codes: dict[Permission, set[int]]) -> None:
    used = {what for what, codes in status_codes.items() if any(200 <= code < 300 for code in codes)}
    # A patch that made the object (server-side apply returns 201 then) needed `create` too, and is logged as one patch.
    used |= {(*what[:2], "create") for what, codes in status_codes.items() if what[2] == "patch" and 201 in codes}
    assert sorted(granted() - TO_GRANT - RARE - FOREIGN - used) == []


def test_no_unused_permission_is_granted(status_codes: dict[Permission, set[int]]) -> None:
    assert sorted(set(status_codes) - granted()) == []
