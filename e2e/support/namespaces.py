"""Namespaces of tests: made restricted, and deleted without anybody waiting longer than needed."""

from typing import Final

from e2e.cluster import Cluster
from e2e.cluster.volumes import NAMESPACE_LABEL
from e2e.support.waiting import until

OF_A_TEST: Final = "bladellm-e2e/test"
"""Label of the namespaces that must be gone at the end."""
DISCARDED: Final = "bladellm-e2e/discarded"
"""Label of those that nobody uses any more."""


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
    """Its pods leave while the next test runs, whatever responses they may still be sending; after them it goes.

    Not together: a namespace that has pods when it is deleted is checked again after half their grace period.
    """
    for kinds in ("llmservices", "deployments,replicasets,statefulsets,pods"):
        cluster.kubectl("-n", name, "delete", kinds, "--all", "--grace-period=1", "--wait=false", check=False)
    cluster.kubectl("delete", "persistentvolumes", "-l", f"{NAMESPACE_LABEL}={name}", "--wait=false")
    cluster.kubectl("label", "namespace", name, f"{DISCARDED}=true", check=False)  # a test may have deleted it
    delete_discarded(cluster)


def delete_discarded(cluster: Cluster) -> bool:
    """Delete the discarded namespaces that have no pods any more; whether those were all."""
    active = ["get", "namespaces", "-l", DISCARDED, "--field-selector=status.phase=Active", "-o", "name"]
    names = {line.removeprefix("namespace/") for line in cluster.kubectl(*active).split()}
    namespaces_of_pods = "jsonpath={.items[*].metadata.namespace}"
    busy = set(cluster.kubectl("get", "pods", "-A", "-o", namespaces_of_pods).split())
    if empty := sorted(names - busy):
        cluster.kubectl("delete", "namespaces", *empty, "--wait=false")
    return not names & busy


def wait_for_discarded(cluster: Cluster) -> None:
    """Wait until no namespace of a test is left; CommandFailed names those that something blocks."""
    until(lambda: delete_discarded(cluster), 120, "the pods of all tests are gone")
    if cluster.kubectl("get", "namespaces", "-l", OF_A_TEST, "-o", "name").strip():
        cluster.kubectl("wait", "--for=delete", "namespaces", "-l", OF_A_TEST, "--timeout=120s")
