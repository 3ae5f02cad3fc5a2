"""The kind LeaderWorkerSet in a cluster without its controller, and as much of what that does as groups depend on.

A leader's StatefulSet of the set's name, and one of the workers, whose numbers begin at 1 and which the leader's pod
owns: as https://lws.sigs.k8s.io/docs describes them with restart policy ``None``. Its webhooks are not there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from blade_operator.model.controllers import LEADER_WORKER_SET, LEADER_WORKER_SET_VERSION
from blade_operator.model.objects import Object
from e2e.cluster import Cluster
from e2e.support.waiting import until_served

GROUP: Final = LEADER_WORKER_SET_VERSION.partition("/")[0]
PLURAL: Final = "leaderworkersets"
_NAME: Final = "leaderworkerset.sigs.k8s.io/name"
_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"
_GROUP_INDEX: Final = "leaderworkerset.sigs.k8s.io/group-index"
_ANYTHING: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_PAUSE: Final = 0.3


def _object(*required: str, **properties: Any) -> Object:
    return {"type": "object", "properties": properties} | ({"required": [*required]} if required else {})


def definition() -> Object:
    """The CustomResourceDefinition: the fields that the operator writes, with their permitted values."""
    policies = ["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]
    template = _object(
        "workerTemplate",
        size={"type": "integer", "default": 1},
        restartPolicy={"type": "string", "enum": policies, "default": "RecreateGroupOnPodRestart"},
        workerTemplate=_ANYTHING,
    )
    network = _object("subdomainPolicy", subdomainPolicy={"type": "string", "enum": ["Shared", "UniquePerReplica"]})
    strategy = _object("type", type={"type": "string", "enum": ["RollingUpdate"], "default": "RollingUpdate"})
    spec = _object(
        "leaderWorkerTemplate",
        replicas={"type": "integer", "default": 1},
        startupPolicy={"type": "string", "enum": ["LeaderCreated", "LeaderReady"], "default": "LeaderCreated"},
        networkConfig=network,
        rolloutStrategy={**strategy, "default": {"type": "RollingUpdate"}},
        leaderWorkerTemplate=template,
    )
    version = {
        "name": LEADER_WORKER_SET_VERSION.partition("/")[2],
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _object(spec=spec, status=_ANYTHING)},
    }
    names = {"kind": LEADER_WORKER_SET, "plural": PLURAL, "singular": PLURAL[:-1]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{PLURAL}.{GROUP}",
            # Required in groups of Kubernetes' own domain.
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


@contextmanager
def installed(cluster: Cluster) -> Iterator[None]:
    """The kind is there meanwhile."""
    obj = definition()
    cluster.apply(obj)
    until_served(cluster, obj["metadata"]["name"])
    try:
        yield
    finally:
        cluster.kubectl("delete", "crd", obj["metadata"]["name"])


@contextmanager
def controlled(cluster: Cluster, namespace: str) -> Iterator[None]:
    """The sets of ``namespace`` get their pods meanwhile."""
    ended, failures = threading.Event(), list[Exception]()

    def work() -> None:
        while not ended.wait(_PAUSE):
            try:
                _sync(cluster, namespace)
            except Exception as error:
                failures.append(error)
                return

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        assert not failures, f"the controller of LeaderWorkerSets ended: {failures[0]}"


def _sync(cluster: Cluster, namespace: str) -> None:
    items = cluster.json("-n", namespace, "get", f"{PLURAL},statefulsets,pods", "-l", "serving.bladellm.io/name")[
        "items"
    ]
    pods = {obj["metadata"]["name"]: obj for obj in items if obj["kind"] == "Pod"}
    made = set(cluster.kubectl("-n", namespace, "get", "statefulsets", "-o", "name").split())
    for obj in items:
        if obj["kind"] != LEADER_WORKER_SET or "deletionTimestamp" in obj["metadata"]:
            continue
        name = obj["metadata"]["name"]
        if f"statefulset.apps/{name}" not in made:
            cluster.apply(_service(name, obj), _leader(name, obj), namespace=namespace)
        leader = pods.get(f"{name}-0")
        there = leader is not None and "deletionTimestamp" not in leader["metadata"]
        if leader is not None and there and f"statefulset.apps/{name}-0" not in made:
            cluster.apply(_workers(name, obj, leader), namespace=namespace)


def _service(name: str, owner: Object) -> Object:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {_NAME: name}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _owned(name, owner), "spec": spec}


def _leader(name: str, obj: Object) -> Object:
    return _stateful_set(name, name, obj, obj, {_NAME: name, _INDEX: "0"}, {"replicas": obj["spec"]["replicas"]})


def _workers(name: str, obj: Object, leader: Object) -> Object:
    numbers = {"replicas": obj["spec"]["leaderWorkerTemplate"]["size"] - 1, "ordinals": {"start": 1}}
    return _stateful_set(f"{name}-0", name, obj, leader, {_NAME: name, _GROUP_INDEX: "0"}, numbers)


def _stateful_set(
    name: str, service: str, obj: Object, owner: Object, labels: dict[str, str], numbers: Object
) -> Object:
    template = obj["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    metadata = {**template["metadata"], "labels": {**template["metadata"]["labels"], **labels}}
    spec = {
        **numbers,
        "serviceName": service,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels},
        "template": {**template, "metadata": metadata},
    }
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": _owned(name, owner), "spec": spec}


def _owned(name: str, owner: Object) -> Object:
    identity = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"]}
    reference = {**identity, "uid": owner["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
    return {"name": name, "ownerReferences": [reference]}
