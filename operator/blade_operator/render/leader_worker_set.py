"""The LeaderWorkerSet of an engine on several machines, in the place of a StatefulSet, where the cluster has that kind.

Its controller makes a StatefulSet of the leader and one of the workers, and a headless Service of the set's name. Pods
get the same names and the same number of their machine as from one StatefulSet, so the template is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from blade_operator.model.controllers import LEADER_WORKER_SET, LEADER_WORKER_SET_VERSION
from blade_operator.model.objects import Object
from blade_operator.render.meta import make, seal
from blade_operator.spec.parse import LLMService
from blade_protocol.labels import MEMBERS, ROLE_MEMBER

QUEUE_LABELS: Final = "kueue.x-k8s.io/"
"""Prefix of the labels by which Kueue queues a set and admits its pods together: those of the LLMService."""
PLACEMENT_ANNOTATIONS: Final = "leaderworkerset.sigs.k8s.io/"
"""Prefix of the annotations by which a set gets a topology domain of its own: those of the LLMService."""


def leader_worker_set(service: LLMService, name: str, nodes: int, template: Object) -> Object:
    """The LeaderWorkerSet ``name``, of one engine on ``nodes`` machines.

    Nothing but the operator replaces the group: of the policies only `None` leaves pods that restart alone before all
    were ready, and keeps the set's pods those that `Group.members` knows.
    """
    spec = {
        "replicas": 1,
        "startupPolicy": "LeaderCreated",  # each waits for the others
        "networkConfig": {"subdomainPolicy": "Shared"},  # the leader's name in DNS depends on it
        "leaderWorkerTemplate": {"size": nodes, "restartPolicy": "None", "workerTemplate": template},
    }
    annotations = _of_prefix(service.annotations, PLACEMENT_ANNOTATIONS)
    return _object(service, name, spec, _of_prefix(service.labels, QUEUE_LABELS), annotations)


def with_members(service: LLMService, obj: Object, members: str) -> Object:
    """The LeaderWorkerSet ``obj`` as it is, but with the hash of the pods that were ready together.

    All else stays, whatever would be rendered today: its controller replaces pods whose template changes at once.
    """
    metadata = obj["metadata"]
    annotations = {**(metadata.get("annotations") or {}), MEMBERS: members}
    return _object(service, metadata["name"], obj["spec"], metadata.get("labels") or {}, annotations)


def _object(
    service: LLMService, name: str, spec: Object, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Object:
    obj = make(service, LEADER_WORKER_SET_VERSION, LEADER_WORKER_SET, name, ROLE_MEMBER, annotations, spec=spec)
    return seal({**obj, "metadata": {**obj["metadata"], "labels": {**labels, **obj["metadata"]["labels"]}}})


def _of_prefix(values: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if name.startswith(prefix)}
