"""Containers that others put into pods: a service mesh whose namespace is labelled, or any other admission webhook."""

from __future__ import annotations

from blade_operator.model import pods as podutil
from blade_operator.model.controllers import pod_template_of
from blade_operator.model.objects import Object
from blade_operator.model.observed import Observed
from blade_protocol.labels import REVISION, ROLE, ROLE_ENGINE, ROLE_MEMBER


def roles_with_sidecars(observed: Observed) -> frozenset[str]:
    """The roles of pods that have a container which the template that they were made from does not."""
    templates = {}
    for workload in (*observed.deployments, *observed.group_objects):
        template = pod_template_of(workload)
        labels = template["metadata"].get("labels") or {}
        role = ROLE_ENGINE if labels.get(ROLE) == ROLE_MEMBER else labels.get(ROLE)
        templates[role, labels.get(REVISION)] = template
    found = set()
    for pod in observed.pods:
        role = podutil.role(pod)
        made_from = templates.get((role, podutil.revision(pod)))
        if made_from is not None and not _names(pod) <= _names(made_from):
            found.add(role)
    return frozenset(found)


def _names(pod: Object) -> set[str]:
    spec = pod.get("spec", {})
    return {each["name"] for field in ("initContainers", "containers") for each in spec.get(field) or ()}
