"""The closed list of what the local runtime runs: every field is honoured, ignored on purpose, or refused.

A rejected field fails the apply with its path, so no field of an object is ignored unseen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from blade_operator.cluster.local.errors import UnsupportedField
from blade_operator.model.controllers import CONTROLLERS, pod_template_of
from blade_operator.model.objects import Object


@dataclass(frozen=True, slots=True)
class Leaf:
    """A field whose whole value is taken as it is."""


@dataclass(frozen=True, slots=True)
class Only:
    """A field that may have these values alone."""

    values: tuple[Any, ...]


HONOURED = Leaf()
IGNORED = Leaf()
"""Isolation and resources have no meaning for processes of one user on one machine."""

Rule = Leaf | Only | dict[str, Any] | list[Any]

_HTTP_PROBE: Rule = {
    "httpGet": {"path": HONOURED, "port": HONOURED, "scheme": Only(("HTTP", "HTTPS"))},
    "initialDelaySeconds": HONOURED,
    "periodSeconds": HONOURED,
    "timeoutSeconds": HONOURED,
    "successThreshold": HONOURED,
    "failureThreshold": HONOURED,
}
_KEY_REFERENCE: Rule = {"name": HONOURED, "key": HONOURED, "optional": HONOURED}
_CONTAINER: Rule = {
    "name": HONOURED,
    "image": IGNORED,  # the programs installed beside this Python run instead
    "imagePullPolicy": IGNORED,
    "command": HONOURED,
    "args": HONOURED,
    "env": [
        {
            "name": HONOURED,
            "value": HONOURED,
            "valueFrom": {
                "fieldRef": {"fieldPath": HONOURED, "apiVersion": IGNORED},
                "secretKeyRef": _KEY_REFERENCE,
                "configMapKeyRef": _KEY_REFERENCE,
            },
        }
    ],
    "ports": [{"name": HONOURED, "containerPort": HONOURED, "protocol": Only(("TCP",))}],
    "volumeMounts": [{"name": HONOURED, "mountPath": HONOURED, "readOnly": IGNORED}],
    "startupProbe": _HTTP_PROBE,
    "readinessProbe": _HTTP_PROBE,
    "livenessProbe": _HTTP_PROBE,
    "lifecycle": {"preStop": {"sleep": IGNORED}},  # routers see terminating pods before these get their SIGTERM
    "terminationMessagePath": IGNORED,  # BLADE_TERMINATION_LOG names the real file
    "terminationMessagePolicy": HONOURED,
    "resources": IGNORED,
    "securityContext": IGNORED,
}
_VOLUME_ITEMS: Rule = [{"key": HONOURED, "path": HONOURED, "mode": IGNORED}]
_POD: dict[str, Any] = {
    "initContainers": [_CONTAINER],
    "containers": [_CONTAINER],
    "volumes": [
        {
            "name": HONOURED,
            "configMap": {
                "name": HONOURED,
                "items": _VOLUME_ITEMS,
                "optional": HONOURED,
                "defaultMode": IGNORED,
            },
            "secret": {
                "secretName": HONOURED,
                "items": _VOLUME_ITEMS,
                "optional": HONOURED,
                "defaultMode": IGNORED,
            },
            "downwardAPI": {
                "items": [{"path": HONOURED, "fieldRef": {"fieldPath": HONOURED, "apiVersion": IGNORED}}],
                "defaultMode": IGNORED,
            },
            "emptyDir": {"medium": IGNORED, "sizeLimit": IGNORED},
            "ephemeral": IGNORED,  # scratch space like an emptyDir
            "persistentVolumeClaim": {"claimName": HONOURED, "readOnly": IGNORED},
        }
    ],
    "restartPolicy": Only(("Always",)),
    "terminationGracePeriodSeconds": HONOURED,
    "serviceAccountName": IGNORED,
    "automountServiceAccountToken": IGNORED,
    "enableServiceLinks": IGNORED,
    "shareProcessNamespace": IGNORED,
    "securityContext": IGNORED,
    "nodeSelector": IGNORED,
    "tolerations": IGNORED,
    "affinity": IGNORED,
    "topologySpreadConstraints": IGNORED,
    "priorityClassName": IGNORED,
    "imagePullSecrets": IGNORED,
}
_TEMPLATE: dict[str, Any] = {"metadata": {"labels": HONOURED, "annotations": HONOURED}, "spec": _POD}
_JOB: Rule = {
    "backoffLimit": HONOURED,
    "completions": Only((1,)),
    "parallelism": Only((1,)),
    "completionMode": Only(("NonIndexed",)),
    "template": {**_TEMPLATE, "spec": {**_POD, "restartPolicy": Only(("OnFailure",))}},
}
_DEPLOYMENT: Rule = {
    "replicas": HONOURED,
    "selector": {"matchLabels": HONOURED},
    "template": _TEMPLATE,
    "strategy": {
        "type": Only(("RollingUpdate",)),
        "rollingUpdate": {"maxSurge": Only((1,)), "maxUnavailable": Only((0,))},
    },
    "revisionHistoryLimit": IGNORED,
    "progressDeadlineSeconds": IGNORED,
    "minReadySeconds": Only((0,)),
}
_STATEFUL_SET: Rule = {
    "replicas": HONOURED,
    "serviceName": IGNORED,  # an environment variable has the address of the first pod
    "podManagementPolicy": Only(("Parallel",)),
    "updateStrategy": {"type": Only(("OnDelete",))},
    "selector": {"matchLabels": HONOURED},
    "template": _TEMPLATE,
    "revisionHistoryLimit": IGNORED,
}
_SERVICE: Rule = {
    "selector": HONOURED,
    "ports": [
        {
            "name": HONOURED,
            "port": HONOURED,
            "targetPort": HONOURED,
            "protocol": Only(("TCP",)),
            "appProtocol": IGNORED,
        }
    ],
    "type": Only(("ClusterIP", "LoadBalancer")),
    "clusterIP": Only(("None",)),
    "publishNotReadyAddresses": IGNORED,  # the endpoints file lists terminating pods, as draining, in any case
}

RUN: dict[str, Rule] = {
    "Deployment": {"spec": _DEPLOYMENT},
    "StatefulSet": {"spec": _STATEFUL_SET},
    "Job": {"spec": _JOB},
    "Service": {"spec": _SERVICE},
    "Pod": {},
}
"""Kinds that make something happen here. Pods are only annotated and labelled."""

KEPT = frozenset(
    {
        "LLMService",
        "ConfigMap",
        "Secret",
        "ControllerRevision",
        "NetworkPolicy",
        "PersistentVolumeClaim",
        "PodDisruptionBudget",
        "Role",
        "RoleBinding",
        "ServiceAccount",
    }
)
"""Kinds that are read by others (the operator, pods) or mean nothing on one machine: stored as they are."""


def require_supported(obj: Object) -> None:
    """Raises:
    UnsupportedField: ``obj`` is of a kind, or has a field, that the local runtime does not know.
    """
    kind = obj["kind"]
    where = f"{kind} {obj['metadata'].get('namespace', 'default')}/{obj['metadata'].get('name', '')}"
    if kind in KEPT:
        return
    if kind not in RUN:
        raise UnsupportedField(f"{where}: the local runtime has no {kind} objects")
    body = {name: value for name, value in obj.items() if name not in ("apiVersion", "kind", "metadata", "status")}
    for problem in _problems(body, RUN[kind], ""):
        raise UnsupportedField(f"{where}: {problem}")
    if kind == "Job" and "restartPolicy" not in obj["spec"]["template"]["spec"]:
        raise UnsupportedField(f"{where}: spec.template.spec.restartPolicy is missing: set OnFailure")
    if kind in CONTROLLERS or kind == "Job":
        for problem in _inconsistencies(pod_template_of(obj)["spec"]):
            raise UnsupportedField(f"{where}: spec.template.spec.{problem}")


def _problems(value: Any, rule: Rule, path: str) -> Iterator[str]:
    if isinstance(rule, Only):
        if value not in rule.values:
            known = " or ".join(map(repr, rule.values))
            yield f"{path} is {value!r}; the local runtime knows {known} only"
    elif isinstance(rule, list):
        for index, item in enumerate(value):
            yield from _problems(item, rule[0], f"{path}[{index}]")
    elif isinstance(rule, dict):
        for name, item in (value or {}).items():
            inner = f"{path}.{name}" if path else name
            if name not in rule:
                yield f"{inner} is not supported by the local runtime"
            else:
                yield from _problems(item, rule[name], inner)


def _inconsistencies(pod: Object) -> Iterator[str]:
    """Yields violations between fields: several replicas share one machine, so every port must be movable."""
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    for group in ("initContainers", "containers"):
        for index, container in enumerate(pod.get(group, [])):
            variables = {entry["name"] for entry in container.get("env", [])}
            ports = {port.get("name", "") for port in container.get("ports", [])}
            here = f"{group}[{index}]"
            if not container.get("command"):
                yield f"{here}.command is missing: without an image there is no entry point"
            for number, port in enumerate(container.get("ports", [])):
                variable = port_variable(port.get("name", ""))
                if variable not in variables:
                    yield f"{here}.ports[{number}] needs the environment variable {variable} to be movable"
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                port = container.get(probe, {}).get("httpGet", {}).get("port", "")
                if probe in container and port not in ports:
                    yield f"{here}.{probe}.httpGet.port is {port!r}: name one of the container's ports"
            for number, mount in enumerate(container.get("volumeMounts", [])):
                if mount["name"] not in volumes:
                    yield f"{here}.volumeMounts[{number}].name is {mount['name']!r}: there is no such volume"


def port_variable(name: str) -> str:
    """The environment variable that carries the port called ``name``."""
    return f"BLADE_{name.upper().replace('-', '_')}_PORT"
