"""A plain HorizontalPodAutoscaler scales an LLMService by what the operator serves: nothing else is installed.

Kubernetes' own parts are all real: the API server's aggregation layer, its discovery, and the autoscaler.
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from blade_operator.external_metrics.catalog import METRICS
from blade_operator.external_metrics.documents import HPA_GROUP, OWN_GROUP
from blade_protocol.labels import NAME
from e2e.cluster import Cluster
from e2e.cluster.base import CommandFailed
from e2e.support import chart
from e2e.support.images import Images
from e2e.support.load import Load, LongStream
from e2e.support.service import Object, Service
from e2e.support.waiting import until

STREAM = 700
"""Tokens of a stream, whose engine may be taken away."""


@pytest.fixture(scope="module")
def external_metrics(cluster: Cluster, operator: str, images: Images) -> Iterator[str]:
    """The installed operator serves them meanwhile; its namespace."""
    chart.install(cluster, images, "--set", "externalMetrics.enabled=true")
    cluster.kubectl("wait", "--for=condition=Available", "--timeout=60s", f"apiservice/v1beta1.{HPA_GROUP}")
    yield operator
    chart.install(cluster, images, "--set", "externalMetrics.enabled=false")


def path(service: Service, metric: str, group: str = HPA_GROUP) -> str:
    return f"/apis/{group}/v1beta1/namespaces/{service.namespace}/{metric}?labelSelector={NAME}%3D{service.name}"


def autoscaler(service: Service, metric: str, **target: str) -> Object:
    """It acts at once, up and down."""
    at_once = {"stabilizationWindowSeconds": 0}
    external = {
        "metric": {"name": metric, "selector": {"matchLabels": {NAME: service.name}}},
        "target": {"type": "AverageValue" if "averageValue" in target else "Value", **target},
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": service.name},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "serving.bladellm.io/v1alpha1",
                "kind": "LLMService",
                "name": service.name,
            },
            "minReplicas": 1,
            "maxReplicas": 3,
            "metrics": [{"type": "External", "external": external}],
            "behavior": {"scaleDown": at_once, "scaleUp": at_once},
        },
    }


def condition(service: Service, kind: str) -> Object:
    conditions = service.json("get", "hpa", service.name).get("status", {}).get("conditions", ())
    return next((each for each in conditions if each["type"] == kind), {})


def test_every_metric_has_a_value_under_load(external_metrics: str, demo: Service) -> None:
    def values() -> dict[str, str]:
        found = {}
        for metric in METRICS:
            done = demo.cluster.run(["kubectl", "get", "--raw", path(demo, metric)])
            if done.returncode:
                return {}
            [item] = json.loads(done.stdout)["items"]
            assert item["metricLabels"] == {NAME: "demo"}
            found[metric] = item["value"]
        return found

    with demo.reach() as url, Load(url, pause=0.0) as load:
        found = demo.until(values, "measured in all respects")
        demo.until(lambda: values().get("bladellm_in_flight_requests", "0") != "0", "seen with requests in flight")
    assert load.bad == []
    assert found["bladellm_ttft_p90_seconds"][-1] in "mu"
    resources = json.loads(demo.cluster.kubectl("get", "--raw", f"/apis/{HPA_GROUP}/v1beta1"))["resources"]
    assert {each["name"] for each in resources} == METRICS.keys()


def test_it_scales_with_requests_in_flight_and_back_and_loses_none(external_metrics: str, demo: Service) -> None:
    demo.cluster.apply(autoscaler(demo, "bladellm_in_flight_requests", averageValue="2"), namespace=demo.namespace)
    try:
        with demo.reach() as url:
            with Load(url, users=6, pause=0.0) as load:  # streams alone may end before the autoscaler looks again
                streams = [LongStream(url, STREAM).first() for _ in range(5)]
                demo.until(lambda: demo.get()["spec"]["replicas"] == 3, "scaled up by its autoscaler")
                assert condition(demo, "ScalingActive")["reason"] == "ValidMetricFound"
            ended = [stream.wait() for stream in streams]
            assert load.bad == []
            assert [(each.outcome, each.tokens) for each in ended] == [("ok", STREAM)] * 5
            demo.until(lambda: demo.get()["spec"]["replicas"] == 1, "scaled down by its autoscaler")
        demo.wait_until_converged(1)
    finally:
        demo.kubectl("delete", "hpa", demo.name)


def test_replicas_stay_while_a_metric_is_unknown(external_metrics: str, demo: Service) -> None:
    demo.kubectl("scale", "llm", demo.name, "--replicas=2")
    demo.wait_until_converged(2)
    demo.cluster.apply(autoscaler(demo, "bladellm_queue", value="1"), namespace=demo.namespace)
    try:
        demo.until(lambda: condition(demo, "ScalingActive").get("status") == "False", "seen by its autoscaler")
        said = condition(demo, "ScalingActive")
        assert said["reason"] == "FailedGetExternalMetric"
        assert "there is no metric 'bladellm_queue'; there are bladellm_queued_requests, " in said["message"]
        assert demo.get()["spec"]["replicas"] == 2
    finally:
        demo.kubectl("delete", "hpa", demo.name)


def test_the_certificate_is_kept_then_renewed_with_the_one_before_still_trusted(
    external_metrics: str, cluster: Cluster
) -> None:
    secret = f"{chart.RELEASE}-operator-external-metrics"
    version = str(cluster.json("version")["serverVersion"]["gitVersion"])

    def rendered(release: str = chart.RELEASE) -> tuple[Object, str]:
        """The Secret's data, and the bundle of the APIService, as the next upgrade would have them."""
        place = ["--namespace", external_metrics, "--dry-run=server", "--kube-version", version]
        shown = ["--set", "externalMetrics.enabled=true", "--show-only", "templates/externalmetrics.yaml"]
        text = cluster.helm("template", release, str(chart.CHART), *place, *shown)
        objects = {obj["kind"]: obj for obj in yaml.safe_load_all(text) if obj}
        return objects["Secret"]["data"], base64.b64decode(objects["APIService"]["spec"]["caBundle"]).decode()

    now = cluster.json("-n", external_metrics, "get", "secret", secret)["data"]
    authority = base64.b64decode(now["ca.crt"]).decode()
    assert rendered() == (now, authority)
    old = "serving.bladellm.io/made-at=1700000000"
    cluster.kubectl("-n", external_metrics, "annotate", "secret", secret, old, "--overwrite")
    data, bundle = rendered()
    assert data["tls.crt"] != now["tls.crt"]
    assert bundle == base64.b64decode(data["ca.crt"]).decode() + authority
    with pytest.raises(CommandFailed, match=r"is served by Service bladellm-system/bladellm-operator already.*KEDA"):
        rendered("other")


def test_nobody_reads_them_without_the_right_to(external_metrics: str, cluster: Cluster, demo: Service) -> None:
    user = f"--as=system:serviceaccount:{demo.namespace}:default"
    done = cluster.run(["kubectl", user, "get", "--raw", path(demo, "bladellm_queued_requests")])
    assert done.returncode == 1
    assert "forbidden" in done.stderr.lower()
    # Past the API server, straight to the operator:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with cluster.reach(external_metrics, f"{chart.RELEASE}-operator", 443) as url:
        with pytest.raises((urllib.error.URLError, OSError)):
            get(url.replace("http://", "https://") + path(demo, "bladellm_queued_requests"), context, "")


def test_keda_reads_them_from_the_api_server_with_a_token(
    external_metrics: str, cluster: Cluster, demo: Service
) -> None:
    """What KEDA's metrics-api scaler does, with a group that KEDA does not serve itself."""
    api = cluster.json("get", "apiservice", f"v1beta1.{HPA_GROUP}")
    spec = {**api["spec"], "group": OWN_GROUP}
    own = {"apiVersion": api["apiVersion"], "kind": "APIService", "metadata": {"name": f"v1beta1.{OWN_GROUP}"}}
    rules = [{"apiGroups": [OWN_GROUP], "resources": ["bladellm_queued_requests"], "verbs": ["list"]}]
    group = "rbac.authorization.k8s.io"
    cluster.apply({**own, "spec": spec})
    cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "keda-reader"}},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": "keda-reader"}, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "keda-reader"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "keda-reader"},
            "subjects": [{"kind": "ServiceAccount", "name": "keda-reader", "namespace": demo.namespace}],
        },
        namespace=demo.namespace,
    )
    try:
        cluster.kubectl("wait", "--for=condition=Available", "--timeout=60s", f"apiservice/v1beta1.{OWN_GROUP}")
        server, context = api_server(cluster)
        token = demo.kubectl("create", "token", "keda-reader").strip()

        def queued() -> str:
            url = f"{server}{path(demo, 'bladellm_queued_requests', OWN_GROUP)}"
            return str(json.loads(get(url, context, token))["items"][0]["value"])  # valueLocation: items.0.value

        assert until(queued, 30, "read by KEDA", ignoring=(urllib.error.HTTPError,)) == "0"
        with pytest.raises(urllib.error.HTTPError, match="403"):
            get(f"{server}{path(demo, 'bladellm_in_flight_requests', OWN_GROUP)}", context, token)
    finally:
        cluster.kubectl("delete", "apiservice", f"v1beta1.{OWN_GROUP}")


def api_server(cluster: Cluster) -> tuple[str, ssl.SSLContext]:
    """Its URL, and how to recognise it."""
    config: dict[str, Any] = json.loads(cluster.kubectl("config", "view", "--minify", "--flatten", "-o", "json"))
    [entry] = config["clusters"]
    authority = base64.b64decode(entry["cluster"]["certificate-authority-data"]).decode()
    return str(entry["cluster"]["server"]), ssl.create_default_context(cadata=authority)


def get(url: str, context: ssl.SSLContext, token: str) -> bytes:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, timeout=10, context=context) as response:
        content: bytes = response.read()
    return content
