"""The life of a release with the real Helm: test, upgrade, rollback, uninstall, install again, some namespaces only.

LLMServices here wait for a volume that never comes: their objects and pods exist, and these tests check no more.
What a test does to the release, the next one finds; after the last it is again as the `operator` fixture installed it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blade_operator.spec.crd.definition import custom_resource_definition
from blade_operator.spec.crd.generate import chart_template
from e2e.cluster import Cluster
from e2e.support import chart
from e2e.support.audit import service_account
from e2e.support.chart import CHART, NAMESPACE, RELEASE
from e2e.support.images import Images
from e2e.support.waiting import until

CRD = "llmservices.serving.bladellm.io"
ADAPTERS = "loraadapters.serving.bladellm.io"
WAIT = ("--wait", "--timeout", "180s", "-n", NAMESPACE)
OPERATOR = f"{RELEASE}-operator"

Change = Callable[..., None]


@pytest.fixture(scope="module")
def change(cluster: Cluster, operator: str, images: Images) -> Iterator[Change]:
    """Upgrade or install the release, with the values it had first and further arguments; undone after the tests."""

    def upgrade(*arguments: str, source: Path = CHART) -> None:
        values = chart.values(images)
        cluster.helm("upgrade", "--install", RELEASE, str(source), *WAIT, *values, *arguments)

    yield upgrade
    upgrade()


def service(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.bladellm.io/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": "waiting"},
        "spec": {"model": {"uri": "pvc://never/model"}, "replicas": 1, **spec},
    }


def refusal(cluster: Cluster, namespace: str, obj: dict[str, Any]) -> str:
    """What the API server says against ``obj``; empty when it would take it."""
    command = ["kubectl", "apply", "-n", namespace, "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"]
    done = cluster.run(command, input=json.dumps(obj))
    return done.stderr if done.returncode else ""


def listed(cluster: Cluster, namespace: str, kind: str, role: str) -> dict[str, dict[str, Any]]:
    """Objects of the LLMService by uid."""
    labels = f"serving.bladellm.io/name=waiting,serving.bladellm.io/role={role}"
    items = cluster.json("get", kind, "-n", namespace, "-l", labels)["items"]
    return {item["metadata"]["uid"]: item for item in items}


def deployments(cluster: Cluster, namespace: str) -> set[str]:
    """Their uids, engines' and router's."""
    return {*listed(cluster, namespace, "deployments", "engine"), *listed(cluster, namespace, "deployments", "router")}


def uid(cluster: Cluster, *what: str) -> str:
    return str(cluster.json("get", *what)["metadata"]["uid"])


def start(cluster: Cluster, namespace: str) -> dict[str, dict[str, Any]]:
    """Apply the LLMService; its engine pods, as soon as there are some and a router."""
    cluster.apply(service(), namespace=namespace)
    until(lambda: listed(cluster, namespace, "deployments", "router"), 60, "a router Deployment")
    return until(lambda: listed(cluster, namespace, "pods", "engine"), 60, "an engine pod")


def test_helm_test_passes(cluster: Cluster, operator: str) -> None:
    said = cluster.helm("test", RELEASE, "-n", operator, "--logs")
    assert "Phase:          Succeeded" in said
    logs = said.partition("POD LOGS")[2]
    assert "ok      the operator is ready" in logs
    assert "ok      LLMServices can be listed in all namespaces" in logs


def test_notes_say_what_to_do_next(cluster: Cluster, operator: str) -> None:
    notes = cluster.helm("get", "notes", RELEASE, "-n", operator)
    for words in ("kubectl apply", "kubectl get llm", "kubectl describe llm", "/v1/chat/completions", "helm uninstall"):
        assert words in notes


@pytest.mark.parametrize(
    ("role", "may"), [("view", False), ("edit", True), ("admin", True)], ids=["view", "edit", "admin"]
)
def test_the_clusters_roles_include_llmservices(
    cluster: Cluster, operator: str, namespace: str, role: str, may: bool
) -> None:
    person = f"{role}er"
    cluster.kubectl("-n", namespace, "create", "rolebinding", person, f"--clusterrole={role}", f"--user={person}")

    def allowed(verb: str, *what: str) -> bool:
        said = cluster.kubectl("-n", namespace, "auth", "can-i", verb, *what, f"--as={person}", check=False)
        return said.split()[0] == "yes"

    until(lambda: allowed("list", CRD), 30, f"{role} includes LLMServices")
    assert allowed("get", CRD, "--subresource=status")
    for verb in ("create", "update", "patch", "delete"):
        assert allowed(verb, CRD) is may, verb
        assert allowed(verb, ADAPTERS) is may, verb
    assert allowed("patch", CRD, "--subresource=scale") is may
    assert not allowed("patch", CRD, "--subresource=status"), "that is the operator's"


def test_upgrade_brings_a_new_field_and_rollback_takes_it_away(
    cluster: Cluster, change: Change, namespace: str, tmp_path: Path
) -> None:
    crd = custom_resource_definition()
    [version] = crd["spec"]["versions"]
    version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["added"] = {"type": "string"}
    newer = shutil.copytree(CHART, tmp_path / "newer")
    (newer / "templates/crd.yaml").write_text(chart_template(crd))

    wanted = service(added="hello")
    assert ".spec.added: field not declared" in refusal(cluster, namespace, wanted)

    change(source=newer)
    until(lambda: not refusal(cluster, namespace, wanted), 30, "the new field is accepted")
    cluster.apply(wanted, namespace=namespace)
    stored = cluster.json("get", "llm", "waiting", "-n", namespace)
    assert stored["spec"]["added"] == "hello"

    cluster.helm("rollback", RELEASE, *WAIT)
    until(lambda: refusal(cluster, namespace, wanted), 30, "the new field is refused again")
    assert uid(cluster, "llm", "waiting", "-n", namespace) == stored["metadata"]["uid"]


def test_a_new_default_engine_image_restarts_no_engine(cluster: Cluster, change: Change, namespace: str) -> None:
    pods = start(cluster, namespace)

    change("--set", "engineImage.tag=next")
    until(
        lambda: cluster.json("get", "llm", "waiting", "-n", namespace)["status"]["revision"].get("outdated"),
        60,
        "status says that the revision is outdated",
    )
    assert listed(cluster, namespace, "pods", "engine").keys() == pods.keys()

    # It is taken up when the user changes the spec.
    cluster.apply(service(engine={"maxNumSeqs": 4}), namespace=namespace)

    def images() -> set[str]:
        found = listed(cluster, namespace, "deployments", "engine").values()
        return {item["spec"]["template"]["spec"]["containers"][0]["image"].rpartition(":")[2] for item in found}

    until(lambda: "next" in images(), 60, "a Deployment with the new image")


def test_uninstall_keeps_services_and_the_next_install_takes_over(
    cluster: Cluster, change: Change, namespace: str, images: Images
) -> None:
    start(cluster, namespace)
    before = deployments(cluster, namespace)
    definition, own = uid(cluster, "crd", CRD), uid(cluster, "llm", "waiting", "-n", namespace)

    cluster.helm("uninstall", RELEASE, *WAIT)
    left = cluster.kubectl(
        *("get", "deployment,serviceaccount,role,rolebinding,service,pdb,networkpolicy,clusterrole,clusterrolebinding"),
        *("-A", "-l", "app.kubernetes.io/part-of=bladellm", "-o", "name"),
    )
    assert left == ""
    assert uid(cluster, "crd", CRD) == definition
    assert uid(cluster, "llm", "waiting", "-n", namespace) == own
    assert deployments(cluster, namespace) == before

    cluster.kubectl("scale", "llm", "waiting", "--replicas=2", "-n", namespace)
    cluster.helm("install", RELEASE, str(CHART), *WAIT, *chart.values(images))

    def sizes() -> list[int]:
        found = listed(cluster, namespace, "deployments", "engine")
        return [item["spec"]["replicas"] for item in found.values()]

    until(lambda: sizes() == [2], 60, "the operator takes over")
    assert deployments(cluster, namespace) == before
    assert uid(cluster, "crd", CRD) == definition


def test_a_crd_of_another_release_is_not_taken_over_silently(cluster: Cluster, operator: str, namespace: str) -> None:
    done = cluster.run(["helm", "install", "other", str(CHART), "-n", namespace])
    assert done.returncode == 1
    assert "invalid ownership metadata" in done.stderr
    assert CRD in done.stderr
    assert cluster.kubectl("get", "deployments,roles", "-n", namespace, "-o", "name") == ""


def test_an_operator_of_one_namespace_leaves_others_alone(cluster: Cluster, change: Change, namespace: str) -> None:
    other = f"{namespace}-other"
    cluster.kubectl("create", "namespace", other)
    try:
        change("--set", f"watchNamespaces={{{namespace}}}", "--set", "crd.aggregateRoles=false")
        roles = ("get", "clusterrole,clusterrolebinding", "-l", "app.kubernetes.io/part-of=bladellm", "-o", "name")
        assert cluster.kubectl(*roles) == ""
        cluster.apply(service(), namespace=other)
        start(cluster, namespace)
        assert deployments(cluster, other) == set()
        may = ("auth", "can-i", "list", CRD, f"--as={service_account(NAMESPACE, OPERATOR)}")
        assert cluster.kubectl(*may, "-n", namespace, check=False).split()[0] == "yes"
        assert cluster.kubectl(*may, "-n", other, check=False).split()[0] == "no"
        assert f"in namespace {namespace}" in cluster.helm("test", RELEASE, "-n", NAMESPACE, "--logs")
    finally:
        cluster.kubectl("delete", "namespace", other, "--wait=false")
