"""A JSON schema of LeaderWorkerSets, strict: a field that their API does not have is an error.

Names, types, required fields and permitted values of the set itself are those of ``leaderworkerset.x-k8s.io/v1``
(https://github.com/kubernetes-sigs/lws, ``api/leaderworkerset/v1``, Apache-2.0; as of commit 024af084). Its pod
templates are Kubernetes' own, which the ``kubernetes`` package describes.
"""

from __future__ import annotations

from typing import Any, Literal

from kubernetes.aio.client import (
    V1ObjectMeta,
    V1PersistentVolumeClaim,
    V1PodTemplateSpec,
    V1StatefulSetPersistentVolumeClaimRetentionPolicy,
)
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class _SubGroupPolicy(_Fields):
    sub_group_policy_type: Literal["LeaderWorker", "LeaderExcluded"] = "LeaderWorker"
    sub_group_size: int = 0


class _LeaderWorkerTemplate(_Fields):
    leader_template: V1PodTemplateSpec | None = None
    worker_template: V1PodTemplateSpec
    size: int = 1
    restart_policy: Literal["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"] = "None"
    sub_group_policy: _SubGroupPolicy | None = None
    volume_claim_templates: list[V1PersistentVolumeClaim] = []
    persistent_volume_claim_retention_policy: V1StatefulSetPersistentVolumeClaimRetentionPolicy | None = None


class _RollingUpdateConfiguration(_Fields):
    partition: int = 0
    max_unavailable: int | str = 1
    max_surge: int | str = 0


class _RolloutStrategy(_Fields):
    type: Literal["RollingUpdate"]
    rolling_update_configuration: _RollingUpdateConfiguration | None = None


class _NetworkConfig(_Fields):
    subdomain_policy: Literal["Shared", "UniquePerReplica"]


class _Spec(_Fields):
    replicas: int = 1
    leader_worker_template: _LeaderWorkerTemplate
    rollout_strategy: _RolloutStrategy | None = None
    startup_policy: Literal["LeaderCreated", "LeaderReady"] = "LeaderCreated"
    network_config: _NetworkConfig | None = None


class _LeaderWorkerSet(_Fields):
    api_version: Literal["leaderworkerset.x-k8s.io/v1"]
    kind: Literal["LeaderWorkerSet"]
    metadata: V1ObjectMeta
    spec: _Spec


def leader_worker_set_schema() -> dict[str, Any]:
    """The schema of one LeaderWorkerSet, without its status."""
    return _LeaderWorkerSet.model_json_schema(by_alias=True)
