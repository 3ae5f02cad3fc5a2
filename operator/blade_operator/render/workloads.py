"""The workloads that run a revision: one Deployment, or, with engines on several machines, a StatefulSet for each, or
a LeaderWorkerSet.

The pods of such an engine are a group: one replica. DNS knows each by a name of its own, so that they find the first
of them, the leader, in whatever order they start. All get the same command; a variable says which one each is.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from blade_operator.model.controllers import LEADER_WORKER_SET, LEADER_WORKER_SET_VERSION, STATEFUL_SET
from blade_operator.model.objects import Object
from blade_operator.model.pods import ENGINE
from blade_operator.render.meta import engine_name, make, seal, selector
from blade_operator.spec.parse import LLMService
from blade_protocol import environment
from blade_protocol.labels import (
    COMPONENT,
    MEMBERS,
    NAME,
    NODES,
    POD_INDEX,
    REPLICA_GROUP,
    REVISION,
    ROLE,
    ROLE_ENGINE,
    ROLE_MEMBER,
    TOPOLOGY_KEY,
)
from blade_protocol.ports import MEETING_PORT

MEETING: Final = "meeting"
"""Name of the port where the pods of an engine meet; its leader listens there."""
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_MEETING_VARIABLE: Final = "BLADE_MEETING_PORT"

_QUEUE_LABELS: Final = "kueue.x-k8s.io/"
"""Prefix of the labels by which Kueue queues a set and admits its pods together: those of the LLMService."""
_PLACEMENT_ANNOTATIONS: Final = "leaderworkerset.sigs.k8s.io/"
"""Prefix of the annotations by which a set gets a topology domain of its own: those of the LLMService."""


def nodes_of(template: Object) -> int:
    """Machines of each engine that an engine's pod template is for."""
    return int(template["metadata"].get("annotations", {}).get(NODES, "1"))


def engine_deployment(service: LLMService, revision: str, template: Object, replicas: int) -> Object:
    """The Deployment that runs ``replicas`` pods of one revision. Only ``replicas`` ever changes."""
    spec = {
        "replicas": replicas,
        "revisionHistoryLimit": 0,
        "selector": {"matchLabels": {**selector(service, ROLE_ENGINE), REVISION: revision}},
        "template": _stamped(template, {REVISION: revision}, {environment.REVISION: revision}),
    }
    return make(service, "apps/v1", "Deployment", f"{engine_name(service)}-{revision}", ROLE_ENGINE, spec=spec)


def engine_group(
    service: LLMService,
    revision: str,
    template: Object,
    number: int,
    members: str = "",
    kind: str = STATEFUL_SET,
) -> Object:
    """The StatefulSet or LeaderWorkerSet (``kind``) of engine ``number`` of one revision, on several machines.

    ``members``: hash of the pods of a StatefulSet that were ready together, once they were. Only that ever changes.

    Its name is shorter than a Deployment's: Kubernetes appends 11 characters and makes it a label's value, the
    controller of LeaderWorkerSets two more before them.
    """
    name = f"{service.name}-{revision}-{number}"
    group = {REVISION: revision, REPLICA_GROUP: str(number)}
    domain = name if kind == LEADER_WORKER_SET else members_name(service)
    leader = f"{name}-0.{domain}.{service.namespace}.svc"
    stamped = _stamped(template, group, {environment.REVISION: revision, environment.LEADER: leader})
    if key := template["metadata"]["annotations"].get(TOPOLOGY_KEY):
        affinity = stamped["spec"].setdefault("affinity", {}).setdefault("podAffinity", {})
        together = {"topologyKey": key, "labelSelector": {"matchLabels": {NAME: service.name, **group}}}
        others = [term for term in affinity.get(_REQUIRED, ()) if not _is_of_group(term)]
        affinity[_REQUIRED] = [*others, together]
    if kind == LEADER_WORKER_SET:
        return _leader_worker_set(service, name, nodes_of(template), stamped)
    spec = {
        "replicas": nodes_of(template),
        "serviceName": members_name(service),
        "podManagementPolicy": "Parallel",  # each waits for the others
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": 0,
        "selector": {"matchLabels": {NAME: service.name, **group}},
        "template": stamped,
    }
    return make(service, "apps/v1", STATEFUL_SET, name, ROLE_MEMBER, {MEMBERS: members} if members else {}, spec=spec)


def with_members(service: LLMService, obj: Object, members: str) -> Object:
    """The LeaderWorkerSet ``obj`` as it is, but with the hash of the pods that were ready together.

    All else stays, whatever would be rendered today: its controller replaces pods whose template changes at once.
    """
    metadata = obj["metadata"]
    annotations = {**(metadata.get("annotations") or {}), MEMBERS: members}
    return _sealed_set(service, metadata["name"], obj["spec"], metadata.get("labels") or {}, annotations)


def members_name(service: LLMService) -> str:
    """Name of the Service that gives the pods of StatefulSets their names in DNS."""
    return f"{engine_name(service)}-members"


def members_selector(service: LLMService) -> dict[str, str]:
    """Labels that select every pod of engines on several machines, the leaders included."""
    return {NAME: service.name, COMPONENT: ROLE_MEMBER}


def members_service(service: LLMService) -> Object:
    """The headless Service of these pods. They find each other before they are ready."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": members_selector(service),
        "ports": [{"name": MEETING, "port": MEETING_PORT, "targetPort": MEETING}],
    }
    return make(service, "v1", "Service", members_name(service), ROLE_MEMBER, spec=spec)


def role_of_pods(service: LLMService) -> str:
    """The role with which engine pods are made."""
    return ROLE_ENGINE if service.spec.engine.gpus.nodes == 1 else ROLE_MEMBER


def pod_annotations(service: LLMService) -> dict[str, str]:
    """Annotations of the pod template that say how its pods belong together."""
    gpus = service.spec.engine.gpus
    if gpus.nodes == 1:
        return {}
    return {NODES: str(gpus.nodes)} | ({TOPOLOGY_KEY: gpus.topology_key} if gpus.topology_key else {})


def pod_flags(service: LLMService) -> list[str]:
    """Flags by which the engine's processes on several machines find each other."""
    if service.spec.engine.gpus.nodes == 1:
        return []
    meeting = f"$({environment.LEADER}):$({_MEETING_VARIABLE})"
    return [*machine_flags(service), "--dist_init_addr", meeting]


def machine_flags(service: LLMService) -> list[str]:
    """Flags that say which of an engine's machines a pod is."""
    nodes = service.spec.engine.gpus.nodes
    return [] if nodes == 1 else ["--nnodes", str(nodes), "--node_rank", f"$({environment.NODE_RANK})"]


def pod_env(service: LLMService) -> dict[str, Any]:
    """The environment variables of ``pod_flags``. That of the leader's name is set for each engine."""
    if service.spec.engine.gpus.nodes == 1:
        return {}
    return {**machine_env(service), _MEETING_VARIABLE: str(MEETING_PORT)}


def machine_env(service: LLMService) -> dict[str, Any]:
    """The environment variable of ``machine_flags``."""
    if service.spec.engine.gpus.nodes == 1:
        return {}
    return {environment.NODE_RANK: {"fieldRef": {"fieldPath": f"metadata.labels['{POD_INDEX}']"}}}


def pod_ports(service: LLMService) -> list[Object]:
    """The port where the engine's processes on several machines meet."""
    several = service.spec.engine.gpus.nodes > 1
    return [{"name": MEETING, "containerPort": MEETING_PORT}] if several else []


def any_engine_pod(service: LLMService) -> Object:
    """A selector of all engine pods, whether an engine is one of them or several."""
    either = {"key": ROLE, "operator": "In", "values": [ROLE_ENGINE, ROLE_MEMBER]}
    return {"matchLabels": {NAME: service.name}, "matchExpressions": [either]}


def _is_of_group(term: Object) -> bool:
    """Whether an affinity is that of an engine's pods to each other, in a template taken from a group."""
    return REPLICA_GROUP in ((term.get("labelSelector") or {}).get("matchLabels") or {})


def _stamped(template: Object, labels: dict[str, str], variables: dict[str, str]) -> Object:
    """``template`` with further labels, and with environment variables of the engine, last of all."""
    stamped = copy.deepcopy(template)
    stamped["metadata"]["labels"].update(labels)
    for container in stamped["spec"]["containers"]:
        if container["name"] == ENGINE:
            env = [entry for entry in container.get("env", []) if entry["name"] not in variables]
            container["env"] = [*env, *({"name": name, "value": value} for name, value in variables.items())]
    return stamped


def _leader_worker_set(service: LLMService, name: str, nodes: int, template: Object) -> Object:
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
    annotations = _of_prefix(service.annotations, _PLACEMENT_ANNOTATIONS)
    return _sealed_set(service, name, spec, _of_prefix(service.labels, _QUEUE_LABELS), annotations)


def _sealed_set(
    service: LLMService, name: str, spec: Object, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Object:
    obj = make(service, LEADER_WORKER_SET_VERSION, LEADER_WORKER_SET, name, ROLE_MEMBER, annotations, spec=spec)
    return seal({**obj, "metadata": {**obj["metadata"], "labels": {**labels, **obj["metadata"]["labels"]}}})


def _of_prefix(values: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if name.startswith(prefix)}
