"""Common parts of rendered objects: names, labels, owner reference, desired hash, and pod security."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from blade_operator.model.objects import Object
from blade_operator.spec.parse import LLMService
from blade_operator.spec.pod_fields import Gpus, ResourceList, Resources
from blade_protocol.labels import API_VERSION, COMPONENT, HASH, KIND, MANAGED_BY, MANAGER, NAME, ROLE

USER_ID = 65532
"""Unprivileged user of the images."""


HOSTNAME = "kubernetes.io/hostname"
"""Node label that identifies a machine to the scheduler."""


def _release() -> str:
    try:
        return version("bladellm")
    except PackageNotFoundError:
        return "latest"


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults of the operator and its installation, for what the spec leaves open."""

    engine_image: str = f"bladellm/engine:{_release()}"
    router_image: str = f"bladellm/operator:{_release()}"
    internal_key: bytes = field(default=b"", repr=False)
    """Root of the services' internal tokens (`blade_operator.render.internal_token`); empty: engines have none."""
    operator_namespace: str = "bladellm-system"
    """Namespace of the operator's own pods, which NetworkPolicies let in."""
    installation: str = ""
    """Name of this installation of the operator; empty: there is no other one."""
    watch_keys: bool = False
    """Routers may follow their Secret of API keys through the API: an operator can only grant what it may do itself.
    Else they follow the mounted file, which is up to a minute behind."""
    openshift: bool = False
    """Pods name no user and no group: the platform gives each namespace ids of its own and refuses others."""
    prometheus_namespaces: tuple[str, ...] = ("monitoring",)
    """Namespaces of the Prometheus pods that NetworkPolicies let in; none: no scrape from outside the service."""
    prometheus_labels: Mapping[str, str] = field(default_factory=lambda: {"app.kubernetes.io/name": "prometheus"})
    """Labels of these pods."""
    group_kind: str = "auto"
    """What is made for an engine on several machines: a ``StatefulSet``, a ``LeaderWorkerSet``, or ``auto``, which is
    the latter where the cluster has that kind."""
    api_server: tuple[tuple[str, int], ...] = ()
    """Addresses (CIDR and port) of the API server, to which NetworkPolicies then restrict routers; none: not known."""


def engine_name(service: LLMService) -> str:
    """Name of the engines' Service; with ``-<revision>``, of a Deployment and its ControllerRevision."""
    return f"{service.name}-engine"


def router_name(service: LLMService) -> str:
    """Name of the router's Deployment, Service and ConfigMap."""
    return f"{service.name}-router"


def labels(service: LLMService, role: str) -> dict[str, str]:
    """Labels of every object of that role; selectors use `selector`, which never grows."""
    return {
        "app.kubernetes.io/name": MANAGER,
        "app.kubernetes.io/instance": service.name,
        COMPONENT: role,
        MANAGED_BY: MANAGER,
        **selector(service, role),
    }


def selector(service: LLMService, role: str) -> dict[str, str]:
    """Labels that select all pods of that role."""
    return {NAME: service.name, ROLE: role}


def make(
    service: LLMService,
    api_version: str,
    kind: str,
    name: str,
    role: str,
    annotations: Mapping[str, str] | None = None,
    **body: Any,
) -> Object:
    """An object with owner reference and desired hash."""
    obj: Object = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": service.namespace,
            "labels": labels(service, role),
            **({"annotations": dict(annotations)} if annotations else {}),
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "name": service.name,
                    "uid": service.uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        **body,
    }
    return seal(obj)


def seal(obj: Object) -> Object:
    """``obj`` with the hash annotation by which drift detection later notices that another object is rendered."""
    metadata = obj["metadata"]
    annotations = {key: value for key, value in metadata.get("annotations", {}).items() if key != HASH}
    bare = {**obj, "metadata": {**metadata, "annotations": annotations}}
    return {**obj, "metadata": {**metadata, "annotations": {**annotations, HASH: digest(bare)}}}


def desired_hash(obj: Object) -> str:
    """The hash an object was rendered with; empty when it has none."""
    return str(obj["metadata"].get("annotations", {}).get(HASH, ""))


def digest(value: Any) -> str:
    """A short hash of JSON data, independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def pod_security(defaults: Defaults) -> Object:
    """The pod half of the restricted Pod Security Standard."""
    ids = {} if defaults.openshift else {"runAsUser": USER_ID, "runAsGroup": USER_ID, "fsGroup": USER_ID}
    return {
        "runAsNonRoot": True,
        **ids,
        # Not file by file on every start: a volume of models is large.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Object:
    """The container half of the restricted Pod Security Standard."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def resources(wanted: Resources | None, gpus: Gpus | None = None) -> Object:
    """``{"resources": …}`` for a container, or nothing. Devices, as many as each of an engine's machines gets, are
    limits; their requests follow by themselves."""
    body = wanted.model_dump(by_alias=True, exclude_none=True) if wanted else {}
    body = {kind: {name: str(amount) for name, amount in amounts.items()} for kind, amounts in body.items() if amounts}
    if gpus and gpus.count:
        body["limits"] = {**body.get("limits", {}), gpus.resource: str(gpus.count // gpus.nodes)}
    return {"resources": body} if body else {}


def with_requests(wanted: Resources | None, least: ResourceList) -> Resources:
    """``wanted``, with the requests of ``least`` for what it neither requests nor limits.

    A pod without any is the first to be killed when its node runs short of memory, and gets hardly any CPU beside
    others.
    """
    wanted = wanted or Resources()
    said = [amounts for amounts in (wanted.requests, wanted.limits) if amounts is not None]
    added = {
        name: amount
        for name, amount in least.model_dump(exclude_none=True).items()
        if all(getattr(amounts, name) is None for amounts in said)
    }
    requests = (wanted.requests or ResourceList()).model_copy(update=added)
    return wanted.model_copy(update={"requests": requests})


def spread(pods: Object) -> list[Object]:
    """A topology spread constraint: the pods of that selector on different machines, where there are any."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": HOSTNAME,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": pods,
        }
    ]


def http_probe(
    path: str, *, period: int, failures: int, timeout: int = 2, port: str = "http", scheme: str = "HTTP"
) -> Object:
    """A probe of the port of that name; times in seconds. Certificates are not verified by whoever probes."""
    secure = {} if scheme == "HTTP" else {"scheme": scheme}
    return {
        "httpGet": {"path": path, "port": port, **secure},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }


def service_account(service: LLMService, name: str, role: str) -> Object:
    """A service account whose token is mounted only where a pod requires it."""
    return make(service, "v1", "ServiceAccount", name, role, automountServiceAccountToken=False)


def disruption_budget(service: LLMService, name: str, role: str, pods: Object, most: int = 1) -> Object:
    """A PodDisruptionBudget: node drains evict one pod of that selector at a time; an unready pod never blocks them.

    ``most``: pods that may be unready, that one included.
    """
    spec = {
        "maxUnavailable": most,
        "selector": pods,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return make(service, "policy/v1", "PodDisruptionBudget", name, role, spec=spec)


def tmp_volume() -> Object:
    """A volume for /tmp, as the root file system is read-only. On disk: a memory volume counts as memory of the pod."""
    return {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}
