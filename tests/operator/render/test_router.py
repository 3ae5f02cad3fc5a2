"""The configuration of routers: in their ConfigMap, which they watch, and by flags that the router knows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml
from operator_support import golden
from operator_support.mini_cluster import service
from operator_support.rendering import CASES, DEFAULTS, args, containers, render, render_case

from blade_operator.model.objects import Object
from blade_operator.render import Defaults, router_objects
from blade_operator.render.router_config import policy_name, router_config
from blade_operator.spec import parse_service
from blade_operator.spec.router_fields import Hold, Policy, Queue
from blade_protocol.routing import HoldConfig, Limits, ModelConfig, PolicyName, QueueConfig, RouterConfig
from blade_router.arguments import parse_arguments
from blade_router.config.parsing import parse_config

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_router_reads_its_configuration_as_the_router_parses_it() -> None:
    [config] = [obj for obj in render(CASES["every_field"]) if obj["kind"] == "ConfigMap"]
    assert msgspec.json.decode(config["data"]["router.json"], type=RouterConfig) == RouterConfig(
        policy="least-request", models=(ModelConfig(name="qwen"),), hold=HoldConfig(max_requests=256)
    )
    flags = args(render(CASES["every_field"]), "router")
    assert flags[flags.index("--service") + 1] == "qwen-engine"


def test_policies_are_those_of_the_router_but_for_the_one_that_is_code() -> None:
    assert {policy_name(policy) for policy in get_args(Policy)} == set(get_args(PolicyName)) - {"external"}


def test_all_that_routers_follow_is_in_their_configuration() -> None:
    [config] = [obj for obj in render(CASES["router"]) if obj["kind"] == "ConfigMap"]
    assert msgspec.json.decode(config["data"]["router.json"], type=RouterConfig) == RouterConfig(
        policy="kv-aware",
        models=(
            ModelConfig(name="qwen", aliases=("gpt-4o-mini",)),
            ModelConfig(
                name="qwen-short",
                defaults={"temperature": 0.6, "chat_template_kwargs": {"enable_thinking": False}},
                max_tokens=256,
                limits=Limits(tokens_per_minute=100_000),
            ),
        ),
        queue=QueueConfig(endpoint_requests=32, key_share=0.75, max_requests=500, max_bytes=64 << 20, max_age=30),
        hold=HoldConfig(max_requests=16, max_bytes=1 << 20, max_age=120),
        share_prefix_cache=True,
        cors_origins=("https://chat.example.com",),
    )
    limited = router_config(parse_service(service(CASES["limits"])))
    assert limited.anonymous == Limits(requests_per_minute=600, concurrent=8)
    assert limited.hold == HoldConfig()


def test_the_defaults_of_the_fields_are_those_of_the_router() -> None:
    plain = service({"router": {"queue": {"endpointRequests": 1}, "hold": {"maxRequests": 0}}})
    config = router_config(parse_service(plain))
    assert config.queue == QueueConfig(endpoint_requests=1)
    off = service({"router": {"queue": {"enabled": False}}})
    assert router_config(parse_service(off)).queue == QueueConfig(enabled=False)
    assert config.hold == HoldConfig()
    assert (Queue.model_fields["max_age"].default, Hold.model_fields["max_age"].default) == ("1m", "10m")


def test_a_plain_service_has_routers_that_an_older_image_can_run() -> None:
    flags = {word for word in args(render(CASES["file_model"]), "router") if word.startswith("--")}
    assert flags == {"--host", "--port", "--service", "--config", "--config_map", "--drain_timeout"}


@pytest.mark.parametrize("case", CASES)
def test_router_flags_are_flags_the_router_has(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.delenv("BLADE_ENDPOINTS_DIR", raising=False)
    values = {"$(BLADE_HOST)": "0.0.0.0", "$(BLADE_HTTP_PORT)": "8080"}
    options = parse_arguments([values.get(word, word) for word in args(render_case(case), "router")])
    assert (options.host, options.port, options.service) == ("0.0.0.0", 8080, "qwen-engine")


@pytest.mark.parametrize("case", CASES)
def test_routers_accept_the_configuration_in_the_golden_files(case: str) -> None:
    [config] = [obj for obj in golden.objects(case) if obj["kind"] == "ConfigMap"]
    assert parse_config(config["data"]["router.json"].encode()) == router_config(parse_service(service(CASES[case])))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_routers_accept_the_configuration_of_the_examples(path: Path) -> None:
    objects = [obj for obj in yaml.safe_load_all(path.read_text()) if obj["kind"] == "LLMService"]
    for example in map(parse_service, objects):
        [config] = [obj for obj in router_objects(example, DEFAULTS) if obj["kind"] == "ConfigMap"]
        assert parse_config(config["data"]["router.json"].encode()) == router_config(example)


def test_routers_that_divide_limits_count_each_other() -> None:
    def counts_replicas(**router: Any) -> bool:
        return "--peers" in args(render({"model": {"uri": "file:///m"}, "router": router}), "router")

    assert not counts_replicas()
    assert counts_replicas(replicas=2)
    assert not counts_replicas(replicas=2, image="registry/router:older")
    assert counts_replicas(replicas=2, image="registry/router:older", limits={"concurrent": 1})
    assert counts_replicas(replicas=2, image="registry/router:older", queue={"endpointRequests": 8})
    assert counts_replicas(limits={"concurrent": 1})
    assert counts_replicas(auth={"keysSecret": {"name": "keys"}})
    assert counts_replicas(models=[{"name": "qwen", "limits": {"concurrent": 1}}])


def test_a_router_may_follow_the_secret_of_its_keys_where_the_operator_may_grant_that() -> None:
    def rules(defaults: Defaults) -> list[Object]:
        [role] = [obj for obj in render(CASES["router"], defaults) if obj["kind"] == "Role"]
        return [rule for rule in role["rules"] if rule["resources"] == ["secrets"]]

    watching = dataclasses.replace(DEFAULTS, watch_keys=True)
    [rule] = rules(watching)
    assert (rule["resourceNames"], rule["verbs"]) == (["team-keys"], ["list", "watch"])
    assert "--keys_secret" in args(render(CASES["router"], watching), "router")
    assert rules(DEFAULTS) == []
    flags = args(render(CASES["router"]), "router")
    assert "--keys" in flags
    assert "--keys_secret" not in flags


def probes(router: dict[str, Any]) -> list[Object]:
    objects = render({"model": {"uri": "file:///m"}, "router": router})
    [deployment] = [obj for obj in objects if obj["kind"] == "Deployment" and obj["metadata"]["name"] == "qwen-router"]
    [container] = containers(deployment)
    return [container[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")]


def test_probes_use_the_admin_port_unless_the_image_may_be_too_old_for_one() -> None:
    tls = {"tls": {"secretName": "certificate"}}
    older = {"image": "registry/router:older"}
    assert probes({}) == probes(tls) == [{"path": "/live", "port": "admin"}] * 3
    assert probes(older) == [{"path": "/live", "port": "http"}] * 3
    assert probes(older | tls) == [{"path": "/live", "port": "http", "scheme": "HTTPS"}] * 3


def test_the_admin_port_is_where_the_router_serves_it_and_in_no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = render(CASES["file_model"])
    [deployment] = [obj for obj in objects if obj["kind"] == "Deployment" and obj["metadata"]["name"] == "qwen-router"]
    [container] = containers(deployment)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": 8080, "admin": 9080}
    for entry in container["env"]:
        monkeypatch.setenv(entry["name"], entry["value"])
    options = parse_arguments(["--endpoints", "http://a:1"])
    assert (options.admin_host, options.admin_port) == ("0.0.0.0", 9080)
    [network] = [obj for obj in objects if obj["kind"] == "Service" and obj["metadata"]["name"] == "qwen-router"]
    assert [port["targetPort"] for port in network["spec"]["ports"]] == ["http"]


def test_the_port_of_a_router_with_tls_is_named_so() -> None:
    objects = render(CASES["router"])
    [network] = [obj for obj in objects if obj["kind"] == "Service" and obj["metadata"]["name"] == "qwen-router"]
    [port] = network["spec"]["ports"]
    assert (port["name"], port["appProtocol"], port["port"], port["targetPort"]) == ("https", "https", 8080, "http")


@pytest.mark.parametrize("replicas", [0, 1])
def test_routers_know_that_a_service_was_scaled_to_zero(replicas: int) -> None:
    config = router_config(parse_service(service({"replicas": replicas, "router": {"hold": {"maxRequests": 0}}})))
    assert config.hold.scaled_to_zero is (replicas == 0)


def container_of(**router: Any) -> Object:
    objects = render({"model": {"uri": "file:///m"}, "router": router})
    [deployment] = [obj for obj in objects if obj["kind"] == "Deployment" and obj["metadata"]["name"] == "qwen-router"]
    [container] = containers(deployment)
    return container


@pytest.mark.parametrize(
    ("router", "requests", "memory_limit"),
    [
        ({}, ("100m", "256Mi"), "512Mi"),
        ({"workers": 3}, ("100m", "768Mi"), "1568Mi"),
        ({"policy": "kvAware"}, ("100m", "256Mi"), "608Mi"),
        ({"prefixIndexBytes": "164Mi"}, ("100m", "256Mi"), "612Mi"),
        ({"resources": {"requests": {"cpu": "2"}}}, ("2", "256Mi"), "512Mi"),
        ({"resources": {"requests": {"memory": "2Gi"}}}, ("100m", "2Gi"), "2Gi"),
        ({"resources": {"limits": {"memory": "128Mi", "cpu": "50m"}}}, ("50m", "128Mi"), "128Mi"),
    ],
)
def test_a_router_has_requests_and_a_memory_limit(
    router: dict[str, Any], requests: tuple[str, str], memory_limit: str
) -> None:
    resources = container_of(**router)["resources"]
    assert (resources["requests"]["cpu"], resources["requests"]["memory"]) == requests
    assert resources["limits"]["memory"] == memory_limit


@pytest.mark.parametrize(
    ("router", "budget"),
    [
        ({}, None),
        ({"resources": {"requests": {"memory": "1Gi"}}}, None),
        ({"resources": {"limits": {"memory": "1Gi"}}}, 768 << 20),
        ({"resources": {"limits": {"memory": "1Gi"}}, "policy": "kvAware"}, 672 << 20),
        ({"resources": {"limits": {"memory": "1056Mi"}}, "workers": 2}, 256 << 20),
        ({"resources": {"limits": {"memory": "200Mi"}}}, 24 << 20),
        ({"resources": {"limits": {"memory": "200Mi"}}, "maxBodyBytes": "8Mi"}, 24 << 20),
        ({"resources": {"limits": {"memory": "200Mi"}}, "maxBodyBytes": "64Mi"}, 96 << 20),
        ({"resources": {"limits": {"memory": "1Gi"}}, "maxBodyBytes": "64Mi"}, 768 << 20),
        ({"maxBodyBytes": "64Mi"}, None),
        ({"resources": {"limits": {"memory": "1Gi"}}, "image": "registry/router:older"}, None),
    ],
)
def test_the_budget_of_bodies_fits_the_memory_limit(router: dict[str, Any], budget: int | None) -> None:
    words = container_of(**router)["args"]
    assert ("--body_budget_bytes" in words) == (budget is not None)
    if budget is not None:
        assert words[words.index("--body_budget_bytes") + 1] == str(budget)
