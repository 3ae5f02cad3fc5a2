"""The life of a release with the real Helm: test, upgrade, rollback, uninstall, install again, some namespaces only.

LLMServices here wait for a volume that never comes: their objects and pods exist, and these tests look at no more.
Every test finds the release of the `operator` fixture as it was installed, and leaves it so.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster.base import Cluster

from blade_operator.spec.crd import custom_resource_definition
from blade_operator.spec.generate import chart_template

CHART = Path(__file__).resolve().parents[2] / "charts/bladellm"
CRD = "llmservices.serving.bladellm.io"
WAIT = ("--wait", "--timeout", "3m")


class Release:
    """The operator's release."""

    name = "bladellm"
    namespace = "bladellm-system"

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.values = folder / "values.json"
        self.values.write_text(self.helm("get", "values", self.name, "-o", "json"))

    def helm(self, *arguments: str) -> str:
        return self.cluster.helm(*arguments, "-n", self.namespace)

    def install(self, *arguments: str, chart: Path = CHART) -> str:
        """Install or upgrade with the values found at the start; ``arguments`` change some of them."""
        values = ("--reset-values", "-f", str(self.values), *arguments)
        return self.helm("upgrade", "--install", self.name, str(chart), *WAIT, *values)

    def uninstall(self) -> None:
        self.helm("uninstall", self.name, *WAIT)


@pytest.fixture
def release(cluster: Cluster, operator: object, tmp_path: Path) -> Iterator[Release]:
    release = Release(cluster, tmp_path)
    yield release
    release.install()


def service(name: str = "waiting", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.bladellm.io/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": name},
        "spec": {"model": {"uri": "pvc://never/model"}, "replicas": 1, **spec},
    }


def refusal(cluster: Cluster, namespace: str, obj: dict[str, Any]) -> str:
    """What the API server says against ``obj``; empty when it would take it."""
    done = cluster.run(
        ["kubectl", "apply", "-n", namespace, "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"],
        input=json.dumps(obj),
    )
    return done.stderr if done.returncode else ""


def until(what: str, check: Callable[[], Any], seconds: float = 60) -> Any:
    """The first true value of ``check``."""
    deadline = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < deadline, f"after {seconds:.0f} s still not: {what}"
        time.sleep(0.5)
    return value


def listed(cluster: Cluster, namespace: str, kind: str, name: str, role: str) -> dict[str, dict[str, Any]]:
    """Objects of an LLMService by uid."""
    labels = f"serving.bladellm.io/name={name},serving.bladellm.io/role={role}"
    items = cluster.json("get", kind, "-n", namespace, "-l", labels)["items"]
    return {item["metadata"]["uid"]: item for item in items}


def uid(cluster: Cluster, *what: str) -> str:
    return str(cluster.json("get", *what)["metadata"]["uid"])


def test_helm_test_passes(cluster: Cluster, release: Release) -> None:
    said = release.helm("test", release.name, "--logs")
    assert "Phase:          Succeeded" in said
    # The pod is gone, and with it nothing is left for an uninstall to miss.
    gone = cluster.kubectl("get", "pod", f"{release.name}-operator-test", "-n", release.namespace, check=False)
    assert "NotFound" in gone


def test_notes_tell_what_to_do_next(release: Release) -> None:
    notes = release.helm("get", "notes", release.name)
    for words in ("kubectl apply", "kubectl get llm", "kubectl describe llm", "/v1/chat/completions", "helm uninstall"):
        assert words in notes


def test_upgrade_brings_a_new_field_and_rollback_takes_it_away(
    cluster: Cluster, release: Release, namespace: str, tmp_path: Path
) -> None:
    crd = custom_resource_definition()
    [version] = crd["spec"]["versions"]
    version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["added"] = {"type": "string"}
    newer = shutil.copytree(CHART, tmp_path / "newer")
    (newer / "templates/crd.yaml").write_text(chart_template(crd))

    wanted = service(added="hello")
    assert ".spec.added: field not declared" in refusal(cluster, namespace, wanted)

    release.install(chart=newer)
    until("the new field is accepted", lambda: not refusal(cluster, namespace, wanted))
    cluster.apply(wanted, namespace=namespace)
    stored = cluster.json("get", "llm", "waiting", "-n", namespace)
    assert stored["spec"]["added"] == "hello"

    release.helm("rollback", release.name, *WAIT)
    until("the new field is refused again", lambda: refusal(cluster, namespace, wanted))
    assert uid(cluster, "llm", "waiting", "-n", namespace) == stored["metadata"]["uid"]


def test_a_new_default_engine_image_restarts_no_engine(cluster: Cluster, release: Release, namespace: str) -> None:
    cluster.apply(service(), namespace=namespace)
    pods = until("an engine pod exists", lambda: listed(cluster, namespace, "pods", "waiting", "engine"))

    release.install("--set", "engineImage.tag=next")
    until(
        "status says that the revision is outdated",
        lambda: cluster.json("get", "llm", "waiting", "-n", namespace)["status"]["revision"].get("outdated"),
    )
    assert listed(cluster, namespace, "pods", "waiting", "engine").keys() == pods.keys()

    # It is taken up when the user changes the spec.
    cluster.apply(service(engine={"maxNumSeqs": 4}), namespace=namespace)

    def images() -> set[str]:
        found = listed(cluster, namespace, "deployments", "waiting", "engine").values()
        return {item["spec"]["template"]["spec"]["containers"][0]["image"].rpartition(":")[2] for item in found}

    until("a Deployment with the new image", lambda: "next" in images())


def test_uninstall_keeps_services_and_the_next_install_takes_over(
    cluster: Cluster, release: Release, namespace: str
) -> None:
    cluster.apply(service(), namespace=namespace)
    until("an engine pod exists", lambda: listed(cluster, namespace, "pods", "waiting", "engine"))
    before = [
        *listed(cluster, namespace, "deployments", "waiting", "engine"),
        *listed(cluster, namespace, "deployments", "waiting", "router"),
    ]
    definition, own = uid(cluster, "crd", CRD), uid(cluster, "llm", "waiting", "-n", namespace)

    release.uninstall()
    left = cluster.kubectl(
        *("get", "deployment,serviceaccount,role,rolebinding,service,pdb,networkpolicy,clusterrole,clusterrolebinding"),
        *("-A", "-l", "app.kubernetes.io/part-of=bladellm", "-o", "name"),
    )
    assert left == ""
    assert uid(cluster, "crd", CRD) == definition
    assert uid(cluster, "llm", "waiting", "-n", namespace) == own
    assert [
        *listed(cluster, namespace, "deployments", "waiting", "engine"),
        *listed(cluster, namespace, "deployments", "waiting", "router"),
    ] == before

    cluster.kubectl("scale", "llm", "waiting", "--replicas=2", "-n", namespace)
    release.install()

    def sizes() -> list[int]:
        found = listed(cluster, namespace, "deployments", "waiting", "engine")
        return [item["spec"]["replicas"] for item in found.values() if item["metadata"]["uid"] in before]

    until("the operator takes over", lambda: sizes() == [2])
    assert uid(cluster, "crd", CRD) == definition


def test_a_crd_of_another_release_is_not_taken_silently(cluster: Cluster, release: Release, namespace: str) -> None:
    done = cluster.run(["helm", "install", "other", str(CHART), "-n", namespace])
    assert done.returncode == 1
    assert "invalid ownership metadata" in done.stderr
    assert CRD in done.stderr
    assert cluster.kubectl("get", "deployments,roles", "-n", namespace, "-o", "name") == ""


def test_an_operator_of_one_namespace_leaves_others_alone(cluster: Cluster, release: Release, namespace: str) -> None:
    other = f"{namespace}-other"
    cluster.kubectl("create", "namespace", other)
    try:
        release.uninstall()
        release.install("--set", f"watchNamespaces={{{namespace}}}")
        assert "No resources found" in cluster.kubectl(
            "get", "clusterrole", "-l", "app.kubernetes.io/part-of=bladellm", check=False
        )
        cluster.apply(service(), namespace=other)
        cluster.apply(service(), namespace=namespace)
        until("an engine pod exists", lambda: listed(cluster, namespace, "pods", "waiting", "engine"))
        assert not listed(cluster, other, "deployments", "waiting", "engine")
        account = f"--as=system:serviceaccount:{release.namespace}:{release.name}-operator"
        may = ("auth", "can-i", "list", CRD, account)
        assert cluster.kubectl(*may, "-n", namespace, check=False).strip() == "yes"
        assert cluster.kubectl(*may, "-n", other, check=False).strip() == "no"
    finally:
        cluster.kubectl("delete", "namespace", other, "--wait=false")
