"""The chart as the real Helm renders it, for many values: checked by the API server, wrong ones refused in words."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
import yaml

from blade_operator.cli.arguments import parse
from e2e.cluster import Cluster
from e2e.support.chart import CHART

DIGEST = "sha256:" + "5" * 64

VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "namespaces": {"watchNamespaces": ["{namespace}", "default"]},
    "least": {
        "replicas": 1,
        "crd": {"install": False},
        "networkPolicy": {"enabled": False},
        "prometheus": {"namespaces": []},
        "openshift": False,
    },
    "everything": {
        "replicas": 3,
        "image": {"registry": "registry.example.com:5000", "tag": "1.2", "pullPolicy": "Always"},
        "engineImage": {"registry": "registry.example.com:5000", "digest": DIGEST},
        "imagePullSecrets": [{"name": "registry"}],
        "log": {"level": "DEBUG", "format": "text"},
        "watchKeys": True,
        "openshift": True,
        "groups": {"kind": "StatefulSet"},
        "externalMetrics": {"enabled": True},
        "prometheus": {"namespaces": ["a", "b"], "podLabels": {"app.kubernetes.io/name": None, "app": "prometheus"}},
        "networkPolicy": {"apiServer": [{"cidr": "10.0.0.1/32", "port": 6443}, {"cidr": "fd00::1/128", "port": 443}]},
        "workers": 4,
        "resources": {"limits": {"cpu": 1}},
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "infra", "operator": "Exists", "effect": "NoSchedule"}],
        "podAnnotations": {"example.com/a": "true"},
        "dashboards": {"enabled": True, "annotations": {"grafana_folder": "LLM"}},
    },
}
MONITORS = ("PodMonitor", "ServiceMonitor", "PrometheusRule")


def template(cluster: Cluster, namespace: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``helm template`` of a release ``r`` in ``namespace`` for this cluster's version; sends it no request."""
    version = str(cluster.json("version")["serverVersion"]["gitVersion"])
    return cluster.run(["helm", "template", "r", str(CHART), "-n", namespace, "--kube-version", version, *arguments])


def render(cluster: Cluster, namespace: str, values: dict[str, Any], *arguments: str) -> list[dict[str, Any]]:
    """Its objects, the test pod too."""
    done = template(cluster, namespace, *set_values(values), *arguments)
    assert done.returncode == 0, done.stderr
    return [obj for obj in yaml.safe_load_all(done.stdout) if obj]


def set_values(values: dict[str, Any]) -> list[str]:
    return [word for name, value in values.items() for word in ("--set-json", f"{name}={json.dumps(value)}")]


@pytest.fixture(params=VALUES)
def values(request: pytest.FixtureRequest, namespace: str) -> dict[str, Any]:
    filled: dict[str, Any] = json.loads(json.dumps(VALUES[request.param]).replace("{namespace}", namespace))
    return filled


def one(objects: list[dict[str, Any]], kind: str, name: str = "r-operator") -> dict[str, Any]:
    [found] = [obj for obj in objects if (obj["kind"], obj["metadata"]["name"]) == (kind, name)]
    return found


def test_lint_has_nothing_to_say(cluster: Cluster, values: dict[str, Any]) -> None:
    version = str(cluster.json("version")["serverVersion"]["gitVersion"])
    cluster.helm("lint", "--strict", str(CHART), "--kube-version", version, *set_values(values))


def test_the_server_takes_every_object_without_a_warning(
    cluster: Cluster, namespace: str, values: dict[str, Any]
) -> None:
    objects = render(cluster, namespace, values)
    for obj in objects:
        if obj["kind"] == "Pod":  # its account does not exist in a dry run
            obj["spec"]["serviceAccountName"] = "default"
    # A Deployment that breaks the restricted Pod Security Standard is only warned about.
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/warn=restricted")
    done = cluster.run(
        ["kubectl", "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-"],
        input=yaml.safe_dump_all(objects),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(objects)


def test_objects_follow_the_values(cluster: Cluster, namespace: str, values: dict[str, Any]) -> None:
    objects = render(cluster, namespace, values)
    kinds = {obj["kind"] for obj in objects}
    watched, crd = values.get("watchNamespaces", []), values.get("crd", {}).get("install", True)
    always = {"ServiceAccount", "Role", "RoleBinding", "Service", "Deployment", "Pod"}
    assert kinds - always == (
        ({"CustomResourceDefinition", "ClusterRole"} if crd else set())
        | (set() if watched else {"ClusterRole", "ClusterRoleBinding"})
        | ({"PodDisruptionBudget"} if values.get("replicas", 2) > 1 else set())
        | ({"NetworkPolicy"} if values.get("networkPolicy", {}).get("enabled", True) else set())
        | ({"APIService", "Secret"} if values.get("externalMetrics") else set())
        | ({"ConfigMap"} if values.get("dashboards") else set())
    )
    assert {obj["metadata"]["namespace"] for obj in objects if obj["kind"] == "Role"} == {namespace, *watched}


def test_cluster_wide_and_namespaced_rules_are_the_same(cluster: Cluster, namespace: str) -> None:
    wide = one(render(cluster, namespace, {}), "ClusterRole")["rules"]
    roles = [obj for obj in render(cluster, namespace, {"watchNamespaces": ["a", "b"]}) if obj["kind"] == "Role"]
    assert [role["rules"] for role in roles if role["metadata"]["name"] == "r-operator-services"] == [wide, wide]


def test_images_and_options_reach_the_operator(cluster: Cluster, namespace: str) -> None:
    deployment = one(render(cluster, namespace, VALUES["everything"]), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert (container["image"], container["imagePullPolicy"]) == (
        "registry.example.com:5000/bladellm/operator:1.2",
        "Always",
    )
    assert {
        f"--engine_image=registry.example.com:5000/bladellm/engine@{DIGEST}",
        "--router_image=registry.example.com:5000/bladellm/operator:1.2",
        "--log_level=DEBUG",
        "--log_format=text",
        "--workers=4",
        f"--lease_namespace={namespace}",
    } <= set(container["args"])
    assert not [arg for arg in container["args"] if arg.startswith("--namespaces")]
    assert container["resources"] == {
        "requests": {"cpu": "50m", "memory": "128Mi"},
        "limits": {"cpu": 1, "memory": "512Mi"},
    }
    assert (deployment["spec"]["replicas"], pod["priorityClassName"]) == (3, "system-cluster-critical")
    assert deployment["spec"]["template"]["metadata"]["annotations"] == {"example.com/a": "true"}

    narrow = one(render(cluster, namespace, {"watchNamespaces": ["a", "b"]}), "Deployment")
    assert "--namespaces=a,b" in narrow["spec"]["template"]["spec"]["containers"][0]["args"]


def test_dashboards_are_what_the_sidecar_looks_for(cluster: Cluster, namespace: str) -> None:
    objects = render(
        cluster, namespace, {"dashboards": {"enabled": True, "labels": {"grafana_dashboard": None, "a": "b"}}}
    )
    maps = [obj for obj in objects if obj["kind"] == "ConfigMap"]
    files = {name: json.loads(text) for obj in maps for name, text in obj["data"].items()}
    assert {obj["metadata"]["labels"].get("a") for obj in maps} == {"b"}
    assert files == {f"bladellm-{file.name}": json.loads(file.read_text()) for file in (CHART / "dashboards").iterdir()}
    plain = one(
        render(cluster, namespace, {"dashboards": {"enabled": True}}), "ConfigMap", "r-operator-dashboard-engine"
    )
    assert plain["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_monitors_and_alerts(cluster: Cluster, namespace: str) -> None:
    values = {
        "podMonitor": {"enabled": True, "labels": {"release": "x"}},
        "serviceMonitor": {"enabled": True, "labels": {"release": "x"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "x"}, "runbooks": "https://wiki.example.com/llm"},
    }
    there = [word for kind in MONITORS for word in ("--api-versions", f"monitoring.coreos.com/v1/{kind}")]
    objects = [obj for obj in render(cluster, namespace, values, *there) if obj["kind"] in MONITORS]
    assert {obj["metadata"]["labels"]["release"] for obj in objects} == {"x"}
    endpoints = {
        obj["metadata"]["name"]: [(each["port"], each.get("honorLabels", False)) for each in found]
        for obj in objects
        if (found := obj["spec"].get("podMetricsEndpoints", obj["spec"].get("endpoints")))
    }
    assert endpoints == {
        "r-operator": [("http", False)],
        "r-operator-engines": [("http", False)],
        "r-operator-routers": [("admin", False)],
    }
    for monitor in (obj for obj in objects if obj["kind"] == "PodMonitor"):
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        running, *more = endpoint["relabelings"]
        assert running == {"sourceLabels": ["__meta_kubernetes_pod_phase"], "regex": "Running", "action": "keep"}
        of_routers = monitor["metadata"]["name"] == "r-operator-routers"
        assert more == ([{"regex": "endpoint", "action": "labeldrop"}] if of_routers else [])
    others = render(cluster, namespace, {})
    service, deployment = one(others, "Service"), one(others, "Deployment")
    selected = one(objects, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert selected.items() <= service["metadata"]["labels"].items()
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert "http" in {port["name"] for port in service["spec"]["ports"]}
    groups = one(objects, "PrometheusRule")["spec"]["groups"]
    expected = yaml.safe_load((CHART / "files/alerts.yaml").read_text())["groups"]
    for group in expected:
        for rule in group["rules"]:
            rule["annotations"]["runbook_url"] = f"https://wiki.example.com/llm/{rule['alert']}.md"
    assert groups == expected


@pytest.mark.parametrize(
    ("value", "kind"),
    [("podMonitor", "PodMonitor"), ("serviceMonitor", "ServiceMonitor"), ("prometheusRule", "PrometheusRule")],
)
def test_without_the_prometheus_operator_monitors_are_refused_in_words(
    cluster: Cluster, namespace: str, value: str, kind: str
) -> None:
    done = template(cluster, namespace, *set_values({value: {"enabled": True}}))
    assert done.returncode != 0
    assert f"{value}.enabled: this cluster has no {kind} resource" in done.stderr


def test_the_test_pod_is_not_taken_for_the_operator(cluster: Cluster, namespace: str) -> None:
    objects = render(cluster, namespace, {})
    selector = one(objects, "Deployment")["spec"]["selector"]["matchLabels"]
    assert selector["app.kubernetes.io/name"] == "bladellm-operator"
    pod = one(objects, "Pod", "r-operator-test")
    assert pod["metadata"]["labels"]["app.kubernetes.io/name"] != selector["app.kubernetes.io/name"]


def arguments(objects: list[dict[str, Any]]) -> list[str]:
    """Of the operator."""
    [container] = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return list(container["args"])


@pytest.mark.parametrize(
    ("openshift", "there", "expected"),
    [("auto", True, True), ("auto", False, False), (True, False, True), (False, True, False)],
)
def test_on_openshift_pods_name_no_user(
    cluster: Cluster, namespace: str, openshift: Any, there: bool, expected: bool
) -> None:
    has = ("--api-versions", "security.openshift.io/v1") if there else ()
    assert ("--openshift" in arguments(render(cluster, namespace, {"openshift": openshift}, *has))) is expected


def test_the_operator_parses_the_options_that_the_chart_gives_it(
    cluster: Cluster, namespace: str, values: dict[str, Any]
) -> None:
    options = parse(arguments(render(cluster, namespace, values)))
    assert (options.openshift, options.watch_keys) == (values.get("openshift", False), values.get("watchKeys", False))
    assert options.group_kind == values.get("groups", {}).get("kind", "auto")
    assert options.external_metrics_port == (8443 if values.get("externalMetrics") else 0)
    prometheus = values.get("prometheus", {})
    assert list(options.prometheus_namespaces) == prometheus.get("namespaces", ["monitoring"])
    labels = prometheus.get("podLabels", {"app.kubernetes.io/name": "prometheus"})
    assert options.prometheus_labels == {name: value for name, value in labels.items() if value is not None}
    known = [(each["cidr"], each["port"]) for each in values.get("networkPolicy", {}).get("apiServer", ())]
    assert list(options.api_server or ()) == known


def test_what_the_operator_connects_to_is_restricted_where_the_api_server_is_known(
    cluster: Cluster, namespace: str
) -> None:
    assert one(render(cluster, namespace, {}), "NetworkPolicy")["spec"]["policyTypes"] == ["Ingress"]
    spec = one(render(cluster, namespace, VALUES["everything"]), "NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    names, api, other, engines, routers = ({port["port"] for port in rule["ports"]} for rule in spec["egress"])
    assert (names, api, other, engines, routers) == ({53, 5353}, {6443}, {443}, {9081}, {9080})


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("externalMetrics.group=metrics.k8s.io", "at '/externalMetrics/group': value must be one of"),
        ("replica=3", "additional properties 'replica' not allowed"),
        ("replicas=0", "at '/replicas': minimum: got 0, want 1"),
        ("watchNamespaces=team-a", "at '/watchNamespaces': got string, want array"),
        ("watchNamespaces={Team}", "at '/watchNamespaces/0': 'Team' does not match pattern"),
        ("image.tag=12", "at '/image/tag': got number, want string"),
        ("engineImage.digest=abc", "at '/engineImage/digest': 'abc' does not match pattern"),
        ("log.level=info", "at '/log/level': value must be one of 'DEBUG', 'INFO', 'WARNING', 'ERROR'"),
        ("crd.keep=false", "at '/crd': additional properties 'keep' not allowed"),
    ],
)
def test_wrong_values_are_refused_with_their_path(cluster: Cluster, setting: str, words: str) -> None:
    done = template(cluster, "default", "--set", setting)
    assert done.returncode == 1
    assert words in done.stderr


def test_external_metrics_are_served_with_the_certificate_that_the_api_server_is_given(
    cluster: Cluster, namespace: str
) -> None:
    objects = render(cluster, namespace, {"externalMetrics": {"enabled": True}})
    secret = one(objects, "Secret", "r-operator-external-metrics")
    api = one(objects, "APIService", "v1beta1.external.metrics.k8s.io")
    assert api["spec"]["caBundle"] == secret["data"]["ca.crt"]
    pod = one(objects, "Deployment")["spec"]["template"]["spec"]
    [volume] = [volume for volume in pod["volumes"] if "secret" in volume]
    assert volume["secret"] == {"secretName": secret["metadata"]["name"]}
    [port] = [port for port in one(objects, "Service")["spec"]["ports"] if port["port"] == 443]
    assert port["targetPort"] in {each["name"] for each in pod["containers"][0]["ports"]}
    assert api["spec"]["service"] == {"name": "r-operator", "namespace": namespace, "port": 443}
    [rule] = one(objects, "NetworkPolicy")["spec"]["ingress"]
    assert [each["port"] for each in rule["ports"]] == ["http", "metrics-api"]

    own = {"secretName": "mine", "annotations": {"cert-manager.io/inject-ca-from": "a/b"}}
    objects = render(
        cluster, namespace, {"externalMetrics": {"enabled": True, "group": "metrics.serving.bladellm.io", "tls": own}}
    )
    assert not [obj for obj in objects if obj["kind"] == "Secret"]
    api = one(objects, "APIService", "v1beta1.metrics.serving.bladellm.io")
    assert (api["metadata"]["annotations"], "caBundle" in api["spec"]) == (own["annotations"], False)
