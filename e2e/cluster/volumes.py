"""Volumes without a provisioner: a PersistentVolume on a folder of the node, tied to one claim."""

from pathlib import Path
from typing import Any, Final

NAMESPACE_LABEL: Final = "bladellm-e2e/namespace"
"""Of a volume: whose it is. Volumes outlive namespaces, so whoever deletes the namespace deletes them by this."""


def static_volume(
    namespace: str, claim: str, folder: Path, size: str, *, with_claim: bool, writable: bool
) -> list[dict[str, Any]]:
    """The volume and, ``with_claim``, its claim (which names the volume, so that it binds at once)."""
    name = f"{namespace}-{claim}"
    modes = ["ReadWriteOnce"] if writable else ["ReadOnlyMany"]
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": {NAMESPACE_LABEL: namespace}},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": claim},
            "hostPath": {"path": str(folder.resolve()), "type": "Directory"},
        },
    }
    wanted = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim, "namespace": namespace},
        "spec": {
            "accessModes": modes,
            "resources": {"requests": {"storage": size}},
            "storageClassName": "",
            "volumeName": name,
        },
    }
    return [volume, wanted] if with_claim else [volume]
