"""What pods are to others than clients: scraped where the chart's PodMonitors look, and run by whatever user."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import yaml

from e2e.cluster.base import Cluster
from e2e.support.chart import CHART, NAMESPACE, RELEASE
from e2e.support.load import chat, client
from e2e.support.prompts import RESPONSES
from e2e.support.service import Object, Service

IDS = {"runAsUser": 1000690000, "runAsGroup": 0, "fsGroup": 1000690000}
"""As OpenShift gives them to the pods of a namespace: a user that is in no image's /etc/passwd."""
METRICS = {"engine": "generation_tokens_total", "router": "blade_router_requests_total"}


def pod_monitors(cluster: Cluster) -> dict[str, Object]:
    """Specs of the chart's PodMonitors for LLMServices, by the role of the pods."""
    shown = ("--show-only", "templates/podmonitor.yaml", "--set", "podMonitor.enabled=true", "-n", NAMESPACE)
    there = ("--api-versions", "monitoring.coreos.com/v1/PodMonitor", "--kube-version", "1.36")
    found = yaml.safe_load_all(cluster.helm("template", RELEASE, str(CHART), *shown, *there))
    specs = {obj["metadata"]["name"].rpartition("-")[2]: obj["spec"] for obj in found if obj}
    return {role: specs[f"{role}s"] for role in METRICS}


def get(pod: Object, port: str, path: str) -> httpx.Response:
    """A page of a pod, at its own address and the port of that name."""
    [number] = [
        each["containerPort"]
        for container in pod["spec"]["containers"]
        for each in container["ports"]
        if each["name"] == port
    ]
    return httpx.get(f"http://{pod['status']['podIP']}:{number}{path}", trust_env=False, timeout=30)


@pytest.mark.parametrize("role", METRICS)
def test_metrics_are_where_the_pod_monitors_look(cluster: Cluster, demo: Service, role: str) -> None:
    spec = pod_monitors(cluster)[role]
    labels = ",".join(f"{name}={value}" for name, value in spec["selector"]["matchLabels"].items())
    pods = demo.json("get", "pods", "-l", labels)["items"]
    assert {pod["metadata"]["uid"] for pod in pods} == {pod["metadata"]["uid"] for pod in demo.pods(role)}
    assert all(set(spec["podTargetLabels"]) <= set(pod["metadata"]["labels"]) for pod in pods)
    with demo.reach() as url, client() as http:
        assert chat(http, url, next(iter(RESPONSES)), stream=False).outcome == "ok"
    [endpoint] = spec["podMetricsEndpoints"]
    for pod in pods:
        response = get(pod, endpoint["port"], endpoint["path"])
        assert response.status_code == 200
        assert METRICS[role] in response.text


def test_clients_see_nothing_of_the_inside(demo: Service) -> None:
    with demo.reach() as url:
        for path in ("/metrics", "/metric", "/status", "/internal/signals", "/debug/route"):
            assert httpx.get(f"{url}{path}", trust_env=False, timeout=30).status_code == 404, path
    for pod in demo.pods("router"):
        assert [each["up"] for each in get(pod, "admin", "/status").json()["endpoints"]] == [True]
        assert get(pod, "admin", "/internal/signals").status_code == 403, "without the service's token"
    [service] = [each for each in demo.objects("services") if each["metadata"]["name"] == "demo-router"]
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["http"]


def test_any_user_can_run_the_images(private: Service) -> None:
    template: dict[str, Any] = {"podTemplate": {"spec": {"securityContext": IDS}}}
    private.apply(engine={**template, "resources": {}}, router=template)
    private.wait_until_converged(1)
    [engine], [router] = private.pods("engine"), private.pods("router")
    for pod, container in ((engine, "engine"), (router, "router")):
        script = "import getpass, os; print(os.getuid(), os.getgid(), getpass.getuser())"
        name = pod["metadata"]["name"]
        assert private.kubectl("exec", name, "-c", container, "--", "python3", "-c", script).split() == [
            *("1000690000", "0", "bladellm")
        ]
        assert pod["status"]["qosClass"] == "Burstable", "though no resources were asked for"
    with private.reach() as url, client() as http:
        assert chat(http, url, next(iter(RESPONSES)), stream=True).outcome == "ok"
