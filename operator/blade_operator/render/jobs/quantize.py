"""The Job that runs ``blade_llm_quantize``: a model from where services have theirs, into a folder of a claim.

The command goes on where it was stopped, so its container is started again when it fails: what is done is on the claim.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from blade_operator.model.objects import Object
from blade_operator.render.meta import (
    Defaults,
    container_security,
    pod_security,
    resources,
    tmp_volume,
    with_requests,
)
from blade_operator.render.storage import MODELS_PATH, download_env, model_argument, model_volumes
from blade_operator.spec.parse import LLMService
from blade_operator.spec.pod_fields import ResourceList
from blade_protocol import environment
from blade_protocol.labels import COMPONENT, MANAGER

OUTPUT_PATH: Final = "/output"
CALIBRATION_PATH: Final = "/calibration"
COMPONENT_NAME: Final = "quantize"
_LEAST: Final = ResourceList(cpu="1", memory="2Gi")
"""Requests where nothing else is said."""
_CLAIM: Final = re.compile(
    r"pvc://([a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)/([A-Za-z0-9_][\w.-]*(?:/[A-Za-z0-9_][\w.-]*)*)", re.A
)


@dataclass(frozen=True, slots=True)
class Quantization:
    """What is to be done."""

    source: LLMService
    """A service of the model that is quantised, with the Job's name, namespace, image, environment and resources."""
    output: tuple[str, str]
    """Claim and folder."""
    calibration: tuple[str, str] | None = None
    """Claim and file of the texts to calibrate with."""
    flags: tuple[str, ...] = ()
    """Further words of the command."""
    backoff_limit: int = 6
    """Restarts after which the Job fails."""
    reports_progress: bool = False
    """The pod keeps the Job's annotation of progress up to date, with an identity that may do just that."""


@dataclass(frozen=True, slots=True)
class _Mount:
    volume: Object
    path: str
    read_only: bool


def claim_folder(uri: str) -> tuple[str, str] | None:
    """Claim and path of ``pvc://claim/path``; None for anything else, and for a claim alone."""
    match = _CLAIM.fullmatch(uri)
    return (match[1], match[2]) if match else None


def quantize_job(wanted: Quantization, defaults: Defaults) -> Object:
    """The Job, as it is to be created: a Job cannot be changed."""
    source = wanted.source
    engine = source.spec.engine
    mounts, volumes = _mounted(_mounts(wanted))
    reports = {environment.PROGRESS_JOB: source.name} if wanted.reports_progress else {}
    env = {**reports, **download_env(source, offline=False), **{each.name: each.value for each in engine.env}}
    container: Object = {
        "name": COMPONENT_NAME,
        "image": engine.image or defaults.engine_image,
        "command": ["blade_llm_quantize"],
        "args": _arguments(wanted),
        **({"env": [_variable(name, value) for name, value in env.items()]} if env else {}),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *mounts],
        **resources(with_requests(engine.resources, _LEAST)),
    }
    labels = _labels(wanted)
    identity = {"serviceAccountName": _identity(wanted)} if wanted.reports_progress else {}
    pod: Object = {
        "restartPolicy": "OnFailure",
        **identity,
        "automountServiceAccountToken": wanted.reports_progress,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,  # as process 1 it would miss its SIGTERM
        "securityContext": pod_security(defaults),
        "containers": [container],
        "volumes": [tmp_volume(), *volumes],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": source.name, "namespace": source.namespace, "labels": labels},
        "spec": {
            "backoffLimit": wanted.backoff_limit,
            "template": {"metadata": {"labels": dict(labels)}, "spec": pod},
        },
    }


def progress_access(wanted: Quantization) -> list[Object]:
    """What lets the Job's pod write the Job's annotations: an identity of its own that may change this one Job.

    Kubernetes has no right for annotations alone. Of a Job its template cannot be changed, whoever may change it.
    """
    api, name = "rbac.authorization.k8s.io", _identity(wanted)
    meta = {"name": name, "namespace": wanted.source.namespace, "labels": _labels(wanted)}
    job = {"apiGroups": ["batch"], "resources": ["jobs"], "resourceNames": [wanted.source.name], "verbs": ["patch"]}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": wanted.source.namespace}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta, "automountServiceAccountToken": False},
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": meta, "rules": [job]},
        {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": api, "kind": "Role", "name": name},
            "subjects": [subject],
        },
    ]


def _identity(wanted: Quantization) -> str:
    return f"{wanted.source.name}-progress"


def _labels(wanted: Quantization) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": MANAGER,
        "app.kubernetes.io/instance": wanted.source.name,
        COMPONENT: COMPONENT_NAME,
    }


def _arguments(wanted: Quantization) -> list[str]:
    calibration = wanted.calibration
    return [
        *("--model", model_argument(wanted.source)),
        *("--output_dir", f"{OUTPUT_PATH}/{wanted.output[1]}"),
        *(("--calib_data_file", f"{CALIBRATION_PATH}/{calibration[1]}") if calibration else ()),
        *(word.replace("$", "$$") for word in wanted.flags),  # a kubelet expands $(NAME)
    ]


def _mounts(wanted: Quantization) -> Iterable[_Mount]:
    for volume in model_volumes(wanted.source):
        yield _Mount(volume, MODELS_PATH, not wanted.source.spec.model.downloaded)
    yield _Mount(_claim("output", wanted.output[0]), OUTPUT_PATH, False)
    if wanted.calibration is not None:
        yield _Mount(_claim("calibration", wanted.calibration[0], readOnly=True), CALIBRATION_PATH, True)


def _claim(name: str, claim: str, **more: bool) -> Object:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim, **more}}


def _mounted(mounts: Iterable[_Mount]) -> tuple[list[Object], list[Object]]:
    """Mounts and volumes of the pod. One claim is one volume, mounted more than once: many storage drivers do not mount
    a claim twice for a pod."""
    volumes: dict[str, Object] = {}
    placed = []
    for mount in mounts:
        claim = mount.volume.get("persistentVolumeClaim", {}).get("claimName", "")
        volume = volumes.setdefault(claim, mount.volume)
        if claim and not mount.read_only:
            volume["persistentVolumeClaim"] = {"claimName": claim}
        read_only = {"readOnly": True} if mount.read_only else {}
        placed.append({"name": volume["name"], "mountPath": mount.path, **read_only})
    return placed, list(volumes.values())


def _variable(name: str, value: object) -> Object:
    return {"name": name, "value": value} if isinstance(value, str) else {"name": name, "valueFrom": value}
