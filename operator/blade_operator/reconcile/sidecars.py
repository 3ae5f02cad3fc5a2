"""Containers that others put into pods: a service mesh whose namespace is labelled, or any other admission webhook."""

from __future__ import annotations

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_operator.model.observed import Observed
from blade_protocol.labels import REVISION, ROLE, ROLE_ENGINE, ROLE_MEMBER


def roles_with_sidecars(observed: Observed) -> frozenset[str]:
    """The roles of pods that have a container which their Deployment or StatefulSet does not."""
    templates = {}
    for workload in (*observed.deployments, *observed.stateful_sets):
        labels = workload["spec"]["template"]["metadata"].get("labels") or {}
        role = ROLE_ENGINE if labels.get(ROLE) == ROLE_MEMBER else labels.get(ROLE)
        templates[role, labels.get(REVISION)] = workload["spec"]["template"]
    found = set()
    for pod in observed.pods:
        role = podutil.role(pod)
        template = templates.get((role, podutil.revision(pod)))
        if template is not None and not _names(pod) <= _names(template):
            found.add(role)
    return frozenset(found)


def _names(pod: Object) -> set[str]:
    spec = pod.get("spec", {})
    return {each["name"] for field in ("initContainers", "containers") for each in spec.get(field) or ()}
