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
        queue=QueueConfig(endpoint_requests=32, max_requests=500, max_bytes=64 << 20, max_age=30),
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

    [rule] = rules(DEFAULTS)
    assert (rule["resourceNames"], rule["verbs"]) == (["team-keys"], ["list", "watch"])
    assert "--keys_secret" in args(render(CASES["router"]), "router")
    mounted = dataclasses.replace(DEFAULTS, watch_keys=False)
    assert rules(mounted) == []
    flags = args(render(CASES["router"], mounted), "router")
    assert "--keys" in flags
    assert "--keys_secret" not in flags


def test_what_the_router_serves_with_tls_is_probed_and_named_so() -> None:
    objects = render(CASES["router"])
    [deployment] = [obj for obj in objects if obj["kind"] == "Deployment" and obj["metadata"]["name"] == "qwen-router"]
    [container] = containers(deployment)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"
    [network] = [obj for obj in objects if obj["kind"] == "Service" and obj["metadata"]["name"] == "qwen-router"]
    [port] = network["spec"]["ports"]
    assert (port["name"], port["appProtocol"], port["port"], port["targetPort"]) == ("https", "https", 8080, "http")
