"""What a person wants to see after a failure, saved before it is cleaned away."""

import shutil
from pathlib import Path

from e2e.cluster import Cluster, OwnNode


def dump_namespace(cluster: Cluster, namespace: str, folder: Path) -> None:
    """Objects, events, descriptions and logs of one namespace, as files; never raises on what cannot be had."""
    folder.mkdir(parents=True, exist_ok=True)

    def save(name: str, *arguments: str) -> None:
        (folder / name).write_text(cluster.kubectl("-n", namespace, *arguments, check=False))

    save("pods.txt", "get", "pods", "-o", "wide")
    save("events.txt", "get", "events", "--sort-by=.lastTimestamp")
    save("llmservices.txt", "describe", "llmservices")
    save("llmservices.yaml", "get", "llmservices", "-o", "yaml")
    save("pods.describe.txt", "describe", "pods")
    kinds = "deployments,replicasets,statefulsets,controllerrevisions,services,configmaps,endpointslices"
    kinds += ",persistentvolumeclaims"
    save("objects.yaml", "get", kinds, "-o", "yaml")
    for pod in cluster.kubectl("-n", namespace, "get", "pods", "-o", "name", check=False).split():
        if pod.startswith("pod/"):
            name = pod.removeprefix("pod/")
            save(f"{name}.log", "logs", pod, "--all-containers", "--prefix", "--tail=2000")
            save(f"{name}.previous.log", "logs", pod, "--all-containers", "--prefix", "--tail=500", "--previous")


def dump_cluster(cluster: Cluster, folder: Path) -> None:
    """The whole cluster: every pod and event, the operator's namespace, and the own node's logs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nodes.txt").write_text(cluster.kubectl("describe", "nodes", check=False))
    (folder / "pods.txt").write_text(cluster.kubectl("get", "pods", "-A", "-o", "wide", check=False))
    (folder / "events.txt").write_text(cluster.kubectl("get", "events", "-A", "--sort-by=.lastTimestamp", check=False))
    dump_namespace(cluster, "bladellm-system", folder / "bladellm-system")
    if isinstance(cluster, OwnNode):
        shutil.copytree(cluster.layout.logs, folder / "logs", dirs_exist_ok=True)
        shutil.copy(cluster.layout.audit_log, folder / "audit.log")
