"""Pods of the tests' own that the restricted Pod Security Standard lets in."""

from __future__ import annotations

from typing import Any

from e2e.cluster.base import Cluster
from e2e.support.service import Object
from e2e.support.waiting import until


def restricted_pod(name: str, image: str, command: list[str], **container: Any) -> Object:
    """A pod with one container ``main``; ``container`` adds fields to it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "command": command,
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    **container,
                }
            ],
        },
    }


def run_in_pod(cluster: Cluster, namespace: str, name: str, image: str, script: str, *arguments: str) -> str:
    """What a Python script prints in a pod of its own; raises AssertionError with that when it fails."""
    cluster.apply(restricted_pod(name, image, ["python3", "-c", script, *arguments]), namespace=namespace)

    def end() -> str:
        phase = cluster.json("-n", namespace, "get", "pod", name)["status"].get("phase", "")
        return phase if phase in ("Succeeded", "Failed") else ""

    try:
        phase = until(end, 90, f"the end of pod {name}")
        said = cluster.kubectl("-n", namespace, "logs", name, check=False)
        assert phase == "Succeeded", said
        return said
    finally:
        cluster.kubectl("-n", namespace, "delete", "pod", name, "--wait=false")
