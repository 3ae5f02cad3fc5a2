"""Jobs that run one of the engine image's programs once: a check of a node, or load on a service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from blade_operator.model.objects import Object
from blade_operator.render.meta import HOSTNAME, Defaults, container_security, pod_security, tmp_volume
from blade_protocol.labels import COMPONENT, MANAGER

CONTAINER: Final = "tool"
_KEPT_SECONDS: Final = 600
"""How long a Job that ended stays, should nobody delete it."""


@dataclass(frozen=True, slots=True)
class Tool:
    """What is to run, and where."""

    name: str
    """Of the Job, in ``namespace``."""
    namespace: str
    component: str
    command: Sequence[str]
    seconds: int
    """After so long it is ended."""
    image: str = ""
    """Empty: the installation's engine image."""
    node: str = ""
    """Name of the node that it is to run on; empty: any."""
    gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    shm_size: str = ""
    """Of shared memory; empty: as much as the node gives."""
    pod_fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the pod's spec, such as tolerations."""


def tool_job(tool: Tool, defaults: Defaults) -> Object:
    """The Job. It is tried once, and runs alone: nothing but shared memory and /tmp is mounted.

    A pod that names its node's host name goes through the scheduler, which counts its GPUs; one that named the node
    itself would fail where they are taken.
    """
    labels = {"app.kubernetes.io/name": MANAGER, "app.kubernetes.io/instance": tool.name, COMPONENT: tool.component}
    container: Object = {
        "name": CONTAINER,
        "image": tool.image or defaults.engine_image,
        "command": list(tool.command),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}],
        "resources": {
            "requests": {"cpu": "100m", "memory": "512Mi"},
            **({"limits": {tool.gpu_resource: str(tool.gpus)}} if tool.gpus else {}),
        },
    }
    size = {"sizeLimit": tool.shm_size} if tool.shm_size else {}
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(defaults),
        **({"nodeSelector": {HOSTNAME: tool.node}} if tool.node else {}),
        **tool.pod_fields,
        "containers": [container],
        "volumes": [tmp_volume(), {"name": "shm", "emptyDir": {"medium": "Memory", **size}}],
    }
    if tool.node:
        pod["nodeSelector"] = {**pod["nodeSelector"], HOSTNAME: tool.node}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": tool.name, "namespace": tool.namespace, "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": tool.seconds,
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "template": {"metadata": {"labels": dict(labels)}, "spec": pod},
        },
    }
