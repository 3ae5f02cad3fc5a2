"""Recorded reports of real Kubernetes for pods that fail to start, and the expected status of each.

Each case: its name in `status/recorded/pods.json`, the spec of the service, then reason, message and last log of the
failure, and whether waiting is in vain.
"""

from __future__ import annotations

from typing import Any

HUB = {"model": {"uri": "hf://Qwen/Qwen2.5-0.5B", "tokenSecretRef": {"name": "hf"}}}
LIMIT = {"engine": {"resources": {"limits": {"memory": "16Mi"}}}}
PULL = (
    'image engine:1 cannot be pulled: failed to do request: Head "https://registry-1.docker.io/v2/bladellm/engine/'
    'manifests/nope": dial tcp: lookup registry-1.docker.io on 10.255.255.53:53: dial udp 10.255.255.53:53: connect: '
    "network is unreachable (spec.engine.image)"
)
CASES: list[tuple[str, dict[str, Any] | None, str, str, str, bool]] = [
    # case, spec, reason, message, last log, stuck
    (
        "unschedulable-cpu", None, "Unschedulable",
        "cannot be scheduled: 0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable "
        "(spec.engine.resources)", "", True,
    ),
    (
        "unschedulable-gpu", None, "Unschedulable",
        "cannot be scheduled: 0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) were unschedulable "
        "(spec.engine.gpus)", "", True,
    ),
    (
        "unschedulable-selector", None, "Unschedulable",
        "cannot be scheduled: 0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) "
        "were unschedulable (spec.engine.podTemplate)", "", True,
    ),
    (
        "claim-missing", HUB, "Unschedulable",
        'cannot be scheduled: 0/2 nodes are available: persistentvolumeclaim "models" not found '
        "(spec.model.cache.claimName)", "", True,
    ),
    (
        "claim-unbound", HUB, "Unschedulable",
        "cannot be scheduled: 0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims "
        "(spec.model.cache)", "", True,
    ),
    ("image-pull", None, "ImagePullBackOff", PULL, "", True),
    (
        "image-name", None, "InvalidImageName",
        'image engine:1 cannot be used: Failed to apply default image tag "Bad Image": couldn\'t parse image name '
        '"Bad Image": invalid reference format: repository name (library/Bad Image) must be lowercase '
        "(spec.engine.image)", "", True,
    ),
    (
        "image-never", None, "ErrImageNeverPull",
        'image engine:1 cannot be used: Container image "localhost/not-there:1" is not present with pull policy of '
        "Never (spec.engine.image)", "", True,
    ),
    (
        "secret-key-missing", HUB, "CreateContainerConfigError",
        "fetch cannot start: couldn't find key token in Secret team/hf (spec.model.tokenSecretRef)", "", True,
    ),
    (
        "secret-missing", HUB, "CreateContainerConfigError",
        'fetch cannot start: secret "nope" not found (spec.model.tokenSecretRef)', "", True,
    ),
    (
        "config-map-missing", None, "CreateContainerConfigError",
        'engine cannot start: configmap "nope" not found (spec.engine.podTemplate)', "", True,
    ),
    (
        "runs-as-root", None, "CreateContainerConfigError",
        "engine cannot start: container has runAsNonRoot and image will run as root (spec.engine.image)", "", True,
    ),
    (
        "command-missing", None, "RunContainerError",
        'engine cannot start: exec: "blade_llm_server": executable file not found in $PATH (spec.engine.image), '
        "restarted at least 5 times, each time after a longer pause", "", True,
    ),
    (
        "crash-loop", None, "CrashLoopBackOff",
        "engine refuses its flags (exit 2; spec.engine.extraArgs), restarted at least 5 times, each time "
        "after a longer pause",
        "blade_llm_server: unknown flag --no_such_flag", True,
    ),
    (
        "crash-loop-check", None, "CrashLoopBackOff",
        "check failed (exit 1), restarted at least 5 times, each time after a longer pause", "no", True,
    ),
    (
        "oom-killed", LIMIT, "OOMKilled",
        "engine ran out of memory (OOMKilled) at its limit of 16Mi (spec.engine.resources.limits.memory), restarted at "
        "least 5 times, each time after a longer pause", "loading", True,
    ),
    (
        "oom-killed-child", LIMIT, "OOMKilled",
        "engine ran out of memory (OOMKilled) at its limit of 16Mi (spec.engine.resources.limits.memory), restarted at "
        "least 5 times, each time after a longer pause", "Killed", True,
    ),
    (
        "oom-killed-check", LIMIT, "OOMKilled",
        "check ran out of memory (OOMKilled) at its limit of 16Mi (spec.engine.resources.limits.memory), restarted at "
        "least 5 times, each time after a longer pause", "", True,
    ),
    (
        "liveness-killed", None, "CrashLoopBackOff",
        "engine ended, by itself or after a failed liveness probe (exit 0), restarted at least 5 times, each time "
        "after a longer pause", "", True,
    ),
    (
        "node-lost", None, "NodeNotReady",
        "its containers run, but node node1 does not report: kubectl describe node node1", "", False,
    ),
]  # fmt: skip
