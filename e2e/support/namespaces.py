"""Namespaces of tests: made restricted, and deleted without anybody waiting longer than needed."""

from typing import Final

from e2e.cluster import Cluster
from e2e.cluster.volumes import NAMESPACE_LABEL
from e2e.support.waiting import until

OF_A_TEST: Final = "bladellm-e2e/test"
"""Label of the namespaces that must be gone at the end."""


def make_namespace(cluster: Cluster, name: str, **labels: str) -> None:
    """Where only pods of the restricted Pod Security standard may run."""
    metadata = {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted", **labels}}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    until(
        lambda: cluster.run(["kubectl", "-n", name, "get", "serviceaccount", "default"]).returncode == 0,
        30,
        f"the default ServiceAccount of {name}",
    )


def discard_namespace(cluster: Cluster, name: str) -> None:
    """Delete it with its volumes and wait until its pods are gone; the rest Kubernetes does by and by (5 s).

    Pods go first: a namespace that has any when it is deleted is looked at again after half their grace period. Nobody
    waits for the answers they may still be giving.
    """
    for kinds in ("llmservices", "deployments,replicasets,pods"):
        cluster.kubectl("-n", name, "delete", kinds, "--all", "--grace-period=1", "--wait=false", check=False)
    left = ["-n", name, "get", "pods", "-o", "name"]
    until(lambda: not cluster.kubectl(*left).strip(), 120, f"the pods of {name} are gone")
    cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
    cluster.kubectl("delete", "persistentvolumes", "-l", f"{NAMESPACE_LABEL}={name}", "--wait=false")


def wait_for_discarded(cluster: Cluster) -> None:
    """Until no namespace of a test is left; CommandFailed names those that something holds."""
    if cluster.kubectl("get", "namespaces", "-l", OF_A_TEST, "-o", "name").strip():
        cluster.kubectl("wait", "--for=delete", "namespaces", "-l", OF_A_TEST, "--timeout=120s")
