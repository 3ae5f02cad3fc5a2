"""The cluster that all other end-to-end tests stand on: pods, names, GPUs, volumes, fake nodes, and the audit log."""

import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from blade_protocol.check import CheckReport
from e2e.cluster import Cluster, OwnNode
from e2e.cluster.kwok import CHECK, TAINT
from e2e.cluster.small_images import SHELL_IMAGE
from e2e.support.audit import AuditLog
from e2e.support.waiting import until

RESTRICTED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
SECURITY = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def pod(name: str, *command: str, limits: dict[str, str] | None = None, claim: str | None = None) -> dict[str, Any]:
    """A restricted pod of the shell image; ``claim`` is mounted read-only at /data."""
    container: dict[str, Any] = {
        "name": "main",
        "image": SHELL_IMAGE,
        "command": list(command),
        "resources": {"requests": {"cpu": "1m"}, "limits": limits or {}},
        "securityContext": RESTRICTED,
    }
    spec: dict[str, Any] = {
        "containers": [container],
        "securityContext": SECURITY,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
    }
    if claim:
        container["volumeMounts"] = [{"name": "data", "mountPath": "/data", "readOnly": True}]
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def phase(cluster: Cluster, namespace: str, name: str) -> str:
    return cluster.kubectl("-n", namespace, "get", "pod", name, "-o", "jsonpath={.status.phase}")


def run_to_end(cluster: Cluster, namespace: str, name: str, *command: str, claim: str | None = None) -> str:
    """What a pod printed; the test fails if it did not succeed."""
    cluster.apply(pod(name, *command, claim=claim), namespace=namespace)
    ended = until(
        lambda: (now := phase(cluster, namespace, name)) in ("Succeeded", "Failed") and now, 60, f"the end of {name}"
    )
    output = cluster.kubectl("-n", namespace, "logs", name)
    assert ended == "Succeeded", output
    return output


@pytest.fixture
def web(cluster: Cluster, namespace: str) -> str:
    """A Service ``web`` whose one pod serves /; returns its name."""
    serve = "while :; do printf 'HTTP/1.1 200 OK\\r\\nContent-Length: 6\\r\\n\\r\\nhello\\n' | nc -l -p 8080; done"
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    cluster.apply(pod("web", "sh", "-c", serve), service, namespace=namespace)
    cluster.kubectl("-n", namespace, "wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
    return "web"


def test_a_restricted_pod_runs_as_somebody_else_than_root(cluster: Cluster, namespace: str) -> None:
    assert "uid=65532" in run_to_end(cluster, namespace, "who", "id")


def test_a_pod_that_is_not_restricted_is_refused(cluster: Cluster, namespace: str) -> None:
    wild = pod("wild", "true")
    wild["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    said = cluster.kubectl("-n", namespace, "apply", "-f", "-", input=msgspec.json.encode(wild).decode(), check=False)
    assert 'violates PodSecurity "restricted' in said


def test_names_of_services_resolve_and_others_do_not(cluster: Cluster, namespace: str, web: str) -> None:
    address = cluster.kubectl("-n", namespace, "get", "service", web, "-o", "jsonpath={.spec.clusterIP}")
    full = f"{web}.{namespace}.svc.cluster.local"
    cluster.apply(pod("asks", "sleep", "600"), namespace=namespace)
    cluster.kubectl("-n", namespace, "wait", "--for=condition=Ready", "pod/asks", "--timeout=60s")
    nslookup = ["-n", namespace, "exec", "asks", "--", "nslookup"]
    # The negative response for a name that is queried too early is cached for seconds.
    until(lambda: address in cluster.kubectl(*nslookup, full, check=False), 30, f"{full} resolves to {address}")
    assert "NXDOMAIN" in cluster.kubectl(*nslookup, f"nobody.{namespace}.svc.cluster.local", check=False)
    execute = ["-n", namespace, "exec", "asks", "--"]
    # Short names are the resolver's business: it needs its search list.
    assert f"search {namespace}.svc.cluster.local" in cluster.kubectl(*execute, "cat", "/etc/resolv.conf")
    get = f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {address} 80"
    assert "hello\n" in cluster.kubectl(*execute, "sh", "-c", get)


def test_a_test_reaches_a_service(cluster: Cluster, namespace: str, web: str) -> None:
    with cluster.reach(namespace, web, 80) as url:
        response = until(lambda: httpx.get(url, trust_env=False), 30, "a response", ignoring=(httpx.TransportError,))
    assert response.text == "hello\n"


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "amd.com/gpu"])
def test_gpus_are_counted_by_the_scheduler(cluster: Cluster, namespace: str, resource: str) -> None:
    if not isinstance(cluster, OwnNode):
        pytest.skip("only the own node has fake GPUs")
    for name, count in (("fits", "2"), ("too-many", "9")):
        cluster.apply(pod(name, "true", limits={resource: count}), namespace=namespace)
    until(lambda: phase(cluster, namespace, "fits") == "Succeeded", 60, "the pod with two GPUs")
    why = 'jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}'
    said = until(lambda: cluster.kubectl("-n", namespace, "get", "pod", "too-many", "-o", why), 30, "the scheduler")
    assert f"Insufficient {resource}" in said


def test_a_folder_of_this_machine_is_a_volume(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    if not isinstance(cluster, OwnNode):
        pytest.skip("only the own node sees this machine's folders")
    (tmp_path / "word").write_text("from outside")
    tmp_path.chmod(0o755)
    cluster.static_volume(namespace, "model", tmp_path)
    assert run_to_end(cluster, namespace, "reads", "cat", "/data/word", claim="model") == "from outside"


def test_a_claim_made_by_somebody_else_finds_the_volume_kept_for_it(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    if not isinstance(cluster, OwnNode):
        pytest.skip("only the own node sees this machine's folders")
    cluster.volume_for(namespace, "qwen-models", tmp_path)
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "qwen-models"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "20Gi"}}},
    }
    cluster.apply(claim, namespace=namespace)
    bound = ["-n", namespace, "get", "pvc", "qwen-models", "-o", "jsonpath={.status.phase}"]
    until(lambda: cluster.kubectl(*bound) == "Bound", 30, "the claim is bound")


def test_fake_nodes_run_fake_pods(cluster: Cluster, namespace: str) -> None:
    if not isinstance(cluster, OwnNode):
        pytest.skip("only the own node has KWOK")
    cluster.add_kwok_nodes(2)
    template = pod("fake", "true")
    template["spec"] |= {
        "restartPolicy": "Always",
        "nodeSelector": {"type": "kwok"},
        "tolerations": [{"key": TAINT["key"], "operator": "Exists"}],
        "initContainers": [{**template["spec"]["containers"][0], "name": name} for name in ("fetch", "check")],
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "fake"},
        "spec": {
            "replicas": 20,
            "selector": {"matchLabels": {"app": "fake"}},
            "template": {"metadata": template["metadata"] | {"name": None}, "spec": template["spec"]},
        },
    }
    cluster.apply(deployment, namespace=namespace)
    cluster.kubectl("-n", namespace, "rollout", "status", "deployment/fake", "--timeout=60s")

    done = cluster.json("-n", namespace, "get", "pods", "-l", "app=fake")["items"][0]["status"]["initContainerStatuses"]
    ended = {status["name"]: status["state"]["terminated"] for status in done}
    assert {name: state["exitCode"] for name, state in ended.items()} == {"fetch": 0, "check": 0}
    report = msgspec.json.decode(ended["check"]["message"], type=CheckReport)
    assert report == CHECK

    cluster.kubectl("-n", namespace, "delete", "deployment", "fake")
    left = ["-n", namespace, "get", "pods", "-l", "app=fake", "-o", "name"]
    until(lambda: not cluster.kubectl(*left), 30, "fake pods are gone once they are deleted")


def test_the_audit_log_records_who_did_what(cluster: Cluster, namespace: str) -> None:
    if cluster.audit_log is None:
        pytest.skip("this cluster's audit log cannot be read")
    log = AuditLog(cluster.audit_log)
    before = log.mark()
    cluster.kubectl("-n", namespace, "create", "configmap", "seen", "--from-literal=key=value")
    cluster.kubectl("-n", namespace, "get", "configmap", "unknown", check=False)

    in_namespace = [request for request in log.requests("admin", since=before) if request.namespace == namespace]
    mine = [request for request in in_namespace if request.resource == "configmaps"]
    assert [(request.verb, request.name, request.code) for request in mine] == [
        ("create", "seen", 201),
        ("get", "unknown", 404),
    ]
    assert [request.is_write for request in mine] == [True, False]
    # Kubernetes' own parts write leases and statuses all the time; none of that is in the log.
    time.sleep(2)
    assert {request.user for request in log.requests(since=before) if request.user.startswith("system:kube-")} == set()
