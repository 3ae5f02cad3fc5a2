"""What pods may connect to by their NetworkPolicies."""

from __future__ import annotations

import dataclasses
import ipaddress
from typing import Any

import pytest
from operator_support.mini_cluster import MiniCluster, service
from operator_support.rendering import DEFAULTS

from blade_operator.model.objects import Object
from blade_operator.render import Defaults, service_objects
from blade_operator.spec import parse_service

HUB = {"model": {"uri": "hf://a/b"}}
KNOWN = dataclasses.replace(DEFAULTS, api_server=(("10.0.0.1/32", 6443), ("fd00::1/128", 443)))


def egress(spec: dict[str, Any], role: str = "engine", defaults: Defaults = DEFAULTS) -> list[Object] | None:
    """The rules of the role's policy; None: whatever the pods connect to is let out."""
    objects = service_objects(parse_service(service(spec)), defaults)
    [policy] = [obj for obj in objects if obj["kind"] == "NetworkPolicy" and obj["metadata"]["name"] == f"qwen-{role}"]
    found: list[Object] | None = policy["spec"].get("egress")
    assert ("Egress" in policy["spec"]["policyTypes"]) is (found is not None)
    return found


def reached(rule: Object, text: str) -> bool:
    """Whether the blocks of a rule let an address out."""
    address = ipaddress.ip_address(text)
    return any(
        address in ipaddress.ip_network(block["cidr"])
        and not any(address in ipaddress.ip_network(other) for other in block.get("except", ()))
        for block in (peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer)
    )


def ports(rule: Object) -> list[int]:
    return [each["port"] for each in rule["ports"]]


@pytest.mark.parametrize("uri", ["file:///models/qwen", "pvc://store/qwen"])
def test_an_engine_whose_model_is_there_may_ask_for_names_only(uri: str) -> None:
    [names] = egress({"model": {"uri": uri}}) or []
    assert set(ports(names)) == {53, 5353}
    assert {each["protocol"] for each in names["ports"]} == {"UDP", "TCP"}


def test_an_engine_that_downloads_reaches_hubs_anywhere_but_no_metadata_service() -> None:
    [_, hub] = egress(HUB) or []
    assert ports(hub) == [443]
    assert all(reached(hub, text) for text in ("192.0.2.7", "10.1.2.3", "2001:db8::1"))
    assert not any(reached(hub, text) for text in ("169.254.169.254", "fe80::1", "fd00:ec2::254"))
    assert {"namespaceSelector": {}} in hub["to"]


@pytest.mark.parametrize("uri", ["file:///models/qwen", "hf://a/b"])
def test_an_engine_that_reads_images_reaches_public_addresses(uri: str) -> None:
    spec = {"model": {"uri": uri}}
    *others, images = egress(spec | {"engine": {"vision": {}}}) or []
    assert others == egress(spec)
    assert ports(images) == [80, 443]
    assert all(set(peer) == {"ipBlock"} for peer in images["to"])
    assert all(reached(images, text) for text in ("8.8.8.8", "1.1.1.1", "2606:4700::1111"))
    assert egress(spec | {"engine": {"vision": {"enabled": False}}}) == others
    inside = ("10.1.2.3", "172.31.0.9", "192.168.1.1", "100.64.0.1", "127.0.0.1", "169.254.169.254")
    assert not any(reached(images, text) for text in (*inside, "::1", "fd00:ec2::254", "fe80::1", "fc00::1"))


def test_registries_of_a_draft_model_and_of_adapters_are_let_out() -> None:
    speculative = {"method": "draft", "draftModel": {"uri": "oci://registry.team:5001/draft:v1"}}
    spec = {
        "model": {"uri": "oci://registry.team:5000/qwen:v1"},
        "engine": {"speculative": speculative, "lora": {}},
        "adapters": [
            {"name": "sql", "uri": "oci://registry.team:5002/sql:v1"},
            {"name": "local", "uri": "file:///adapters/local"},
        ],
    }
    [_, registries] = egress(spec) or []
    assert ports(registries) == [443, 5000, 5001, 5002]


def test_ports_of_a_mirror_and_of_proxies_are_let_out() -> None:
    env = [
        {"name": "HF_ENDPOINT", "value": "http://hub.team:8000"},
        {"name": "HTTPS_PROXY", "value": "http://proxy.example.com"},
        {"name": "NO_PROXY", "value": "localhost,10.0.0.0/8"},
        {"name": "ODD", "value": "http://a:99999"},
    ]
    [_, hub] = egress(HUB | {"engine": {"env": env}}) or []
    assert ports(hub) == [80, 443, 8000]


@pytest.mark.parametrize(
    ("uri", "variable", "value", "expected"),
    [
        ("modelscope://a/b", None, "", [443]),
        ("modelscope://a/b", "MODELSCOPE_DOMAIN", "www.modelscope.ai", [443]),
        ("modelscope://a/b", "MODELSCOPE_ENDPOINT", "http://mirror.team:8080", [443, 8080]),
        ("s3://models/qwen", None, "", [443]),
        ("s3://models/qwen", "AWS_ENDPOINT_URL_S3", "http://minio.team:9000", [443, 9000]),
        ("s3://models/qwen", "AWS_ENDPOINT_URL", "minio.team:9000", [443, 9000]),
        ("s3://models/qwen", "AWS_ENDPOINT_URL_S3", "$(ENDPOINT)", None),
        ("oss://models/qwen", "OSS_ENDPOINT", "s3.oss-cn-beijing-internal.aliyuncs.com", [443]),
        ("oss://models/qwen", "OSS_ENDPOINT", "http://s3.oss-cn-beijing-internal.aliyuncs.com", [80, 443]),
        ("oci://ghcr.io/acme/qwen:v1", None, "", [443]),
        ("oci://registry.team:5000/acme/qwen:v1", None, "", [443, 5000]),
        ("oci://registry.team:99999/acme/qwen", None, "", None),
        ("oci://registry.team/acme/qwen:v1", "OCI_PLAIN_HTTP", "1", [80, 443]),
        ("oci://registry.team/acme/qwen:v1", "OCI_PLAIN_HTTP", "$(PLAIN)", [80, 443]),
        ("oci://registry.team/acme/qwen:v1", "OCI_PLAIN_HTTP", "0", [443]),
        ("oci://registry.team:5000/acme/qwen:v1", "OCI_PLAIN_HTTP", "1", [443, 5000]),
        ("hf://a/b", "OCI_PLAIN_HTTP", "1", [443]),
    ],
)
def test_ports_of_every_origin_are_let_out(
    uri: str, variable: str | None, value: str, expected: list[int] | None
) -> None:
    env = [{"name": variable, "value": value}] if variable else []
    rules = egress({"model": {"uri": uri}, "engine": {"env": env}})
    assert (None if rules is None else ports(rules[1])) == expected


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_what_containers_of_the_users_own_need_is_not_known(field: str) -> None:
    overlay = {"podTemplate": {"spec": {field: [{"name": "own", "image": "i"}]}}}
    assert egress({"engine": overlay}) is None
    assert egress({"router": overlay}, "router", KNOWN) is None
    known = {"podTemplate": {"spec": {"containers": [{"name": "engine", "env": []}], "nodeSelector": {"disk": "ssd"}}}}
    assert egress({"engine": known}) is not None


def test_routers_reach_the_api_server_their_engines_and_each_other_where_its_address_is_known() -> None:
    assert egress({}, "router") is None
    [_, api, other, engines, routers] = egress({}, "router", KNOWN) or []
    assert (api["to"], ports(api)) == ([{"ipBlock": {"cidr": "10.0.0.1/32"}}], [6443])
    assert (other["to"], ports(other)) == ([{"ipBlock": {"cidr": "fd00::1/128"}}], [443])
    for rule, role, expected in ((engines, "engine", [8081, 9081]), (routers, "router", [9080])):
        [peer] = rule["to"]
        assert set(peer) == {"podSelector"}, "of the service's own namespace"
        labels = {"serving.bladellm.io/name": "qwen", "serving.bladellm.io/role": role}
        assert (peer["podSelector"]["matchLabels"], ports(rule)) == (labels, expected)


def overlay(**container: Any) -> dict[str, Any]:
    return HUB | {"engine": {"podTemplate": {"spec": {"initContainers": [{"name": "fetch", **container}]}}}}


@pytest.mark.parametrize(
    "variable", [{"value": "1"}, {"valueFrom": {"configMapKeyRef": {"name": "registry", "key": "plain"}}}]
)
def test_a_registry_without_tls_is_let_out_wherever_the_variable_stands(variable: dict[str, Any]) -> None:
    spec = overlay(env=[{"name": "OCI_PLAIN_HTTP", **variable}])
    [_, registry] = egress(spec | {"model": {"uri": "oci://registry.team/acme/qwen"}}) or []
    assert ports(registry) == [80, 443]


@pytest.mark.parametrize(
    ("value", "port"),
    [
        ("proxy:3128", 3128),
        ("proxy.example.com", 80),
        ("user:secret@proxy:8888/", 8888),
        ("10.0.0.1:3128", 3128),
        ("[fd00::1]:3128", 3128),
        ("socks5h://proxy", 1080),
        ("socks://proxy:1081", 1081),
    ],
)
def test_proxies_need_no_scheme(value: str, port: int) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        for spec in (
            HUB | {"engine": {"env": [{"name": name, "value": value}]}},
            overlay(env=[{"name": name, "value": value}]),
        ):
            [_, hub] = egress(spec) or []
            assert set(ports(hub)) == {443, port}
    [_, hub] = egress(overlay(env=[{"name": "NO_PROXY", "value": value.partition("://")[2] or "a:1"}])) or []
    assert ports(hub) == [443]


def test_an_address_that_is_elsewhere_restricts_nothing() -> None:
    source = {"secretKeyRef": {"name": "proxy", "key": "url"}}
    assert egress(overlay(env=[{"name": "HTTPS_PROXY", "valueFrom": source}])) is None
    assert egress(overlay(env=[{"name": "HF_ENDPOINT", "valueFrom": source}])) is None
    assert egress(overlay(envFrom=[{"configMapRef": {"name": "proxies"}}])) is None
    assert egress(overlay(env=[{"name": "HF_TOKEN", "valueFrom": source}])) is not None
    local = overlay(envFrom=[{"configMapRef": {"name": "proxies"}}]) | {"model": {"uri": "file:///m"}}
    assert egress(local) is not None, "nothing is downloaded"


@pytest.mark.parametrize(
    "value",
    ["http://$(HOST):$(PORT)", "$(PROXY)", "http://proxy:$(PORT)", "socks://proxy", "http://proxy:99999", "http://"],
)
def test_an_address_that_does_not_say_its_port_restricts_nothing(value: str) -> None:
    for name in ("HTTPS_PROXY", "HF_ENDPOINT"):
        env = [{"name": name, "value": value}]
        assert egress(HUB | {"engine": {"env": env}}) is None
        assert egress(overlay(env=env)) is None
    for name in ("NO_PROXY", "OTHER"):
        assert egress(overlay(env=[{"name": name, "value": value}])) is not None
    [_, hub] = egress(overlay(env=[{"name": "HTTPS_PROXY", "value": ""}])) or []
    assert ports(hub) == [443]


@pytest.mark.parametrize(
    ("kind", "marks", "injected"),
    [
        ("labels", {"sidecar.istio.io/inject": "true"}, True),
        ("labels", {"istio.io/rev": "stable"}, True),
        ("annotations", {"linkerd.io/inject": "enabled"}, True),
        ("annotations", {"linkerd.io/inject": "disabled"}, False),
        ("labels", {"sidecar.istio.io/inject": "false", "istio.io/rev": "stable"}, False),
        ("annotations", {"consul.hashicorp.com/connect-inject": "true"}, True),
        ("annotations", {"example.com/inject": "true"}, False),
    ],
)
def test_pods_of_a_service_mesh_are_let_out(kind: str, marks: dict[str, str], injected: bool) -> None:
    template = {"podTemplate": {"metadata": {kind: marks}}}
    assert (egress({"engine": template}) is None) is injected
    assert (egress({"router": template}, "router", KNOWN) is None) is injected


def test_pods_into_which_a_mesh_has_put_a_sidecar_are_let_out() -> None:
    cluster = MiniCluster(service(), KNOWN)
    cluster.converge()

    def restricted() -> list[str]:
        found = [obj for ref, obj in cluster.objects.items() if ref.kind == "NetworkPolicy"]
        return sorted(obj["metadata"]["name"] for obj in found if "egress" in obj["spec"])

    assert restricted() == ["qwen-engine", "qwen-router"]
    [engine] = cluster.engine_pods
    engine["spec"] = {**engine["spec"], "initContainers": [{"name": "istio-proxy", "restartPolicy": "Always"}]}
    cluster.reconcile()
    assert restricted() == ["qwen-router"]
    assert [obj for obj in cluster.plan().apply if obj["kind"] == "NetworkPolicy"] == []
