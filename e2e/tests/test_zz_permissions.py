"""Runs after all other tests: what the operator may do and what it did in them, from the API server's audit log.

A verb that no test made the operator use is one it should not have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.cluster.base import Cluster

CHART = Path(__file__).resolve().parents[2] / "charts/bladellm"
ACCOUNT = "system:serviceaccount:bladellm-system:bladellm-operator"

Permission = tuple[str, str, str]
"""API group, resource with its subresource, verb."""

TO_GRANT = {
    ("", "configmaps", "get"),
    ("discovery.k8s.io", "endpointslices", "list"),
    ("discovery.k8s.io", "endpointslices", "watch"),
}
"""Held because nobody may grant what they do not hold; routers use them."""
OWN_NAMESPACE = {
    ("coordination.k8s.io", "leases", "create"),
    ("coordination.k8s.io", "leases", "get"),
    ("coordination.k8s.io", "leases", "update"),
    ("", "secrets", "get"),
}
ALWAYS_ALLOWED = {"selfsubjectaccessreviews", "selfsubjectreviews"}


def granted() -> set[Permission]:
    rules = yaml.safe_load((CHART / "files/rules.yaml").read_text())
    everywhere = {
        (group, name, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for name in rule["resources"]
        for verb in rule["verbs"]
    }
    return everywhere | OWN_NAMESPACE


def requests(log: Path) -> Iterator[dict[str, Any]]:
    """The operator's requests for resources, each once, when answered (a watch: when it began)."""
    with log.open() as lines:
        for line in lines:
            if ACCOUNT not in line:
                continue
            event = json.loads(line)
            asked_by_it = event["user"]["username"] == ACCOUNT and "impersonatedUser" not in event
            if asked_by_it and event["stage"] != "RequestReceived" and "objectRef" in event:
                yield event


def permission(event: dict[str, Any]) -> Permission:
    ref = event["objectRef"]
    name = "/".join(part for part in (ref["resource"], ref.get("subresource")) if part)
    return ref.get("apiGroup", ""), name, event["verb"]


@pytest.fixture(scope="module")
def asked(cluster: Cluster, operator: object) -> dict[Permission, set[int]]:
    """Status codes by permission."""
    if cluster.audit_log is None:
        pytest.skip("this cluster's audit log cannot be read")
    answers: dict[Permission, set[int]] = {}
    for event in requests(cluster.audit_log):
        if event["objectRef"]["resource"] not in ALWAYS_ALLOWED:
            answers.setdefault(permission(event), set()).add(event.get("responseStatus", {}).get("code", 0))
    return answers


def test_every_verb_granted_is_used(asked: dict[Permission, set[int]]) -> None:
    used = {what for what, codes in asked.items() if any(200 <= code < 300 for code in codes)}
    # A patch that made the object (server-side apply answers 201 then) needed `create` too, and is logged as one patch.
    used |= {
        (group, name, "create") for (group, name, verb), codes in asked.items() if verb == "patch" and 201 in codes
    }
    assert sorted(granted() - TO_GRANT - used) == []


def test_nothing_more_was_ever_asked_for(asked: dict[Permission, set[int]]) -> None:
    assert sorted(set(asked) - granted()) == []
