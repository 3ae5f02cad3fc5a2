"""How ``spec.tracing`` and ``spec.logFormat`` reach the pods, and that traces may leave them."""

from typing import Any

import pytest
from operator_support.mini_cluster import service

from blade_operator.model.objects import Object
from blade_operator.render import Defaults, pod_template, router_objects, service_objects
from blade_operator.spec import parse_service

DEFAULTS = Defaults(engine_image="engine:1", router_image="router:1", api_server=(("10.0.0.1/32", 6443),))
COLLECTOR = {"endpoint": "http://collector.monitoring:4318", "samplingRatio": "0.01"}


def environments(spec: dict[str, Any]) -> list[dict[str, str]]:
    """The variables of the engine's container and the router's."""
    typed = parse_service(service(spec))
    router = router_objects(typed, DEFAULTS)[-1]["spec"]["template"]
    containers = [pod["spec"]["containers"][0] for pod in (pod_template(typed, DEFAULTS), router)]
    return [{each["name"]: each.get("value", "") for each in container["env"]} for container in containers]


def test_both_programs_get_opentelemetrys_own_variables() -> None:
    engine, router = environments({"tracing": COLLECTOR, "logFormat": "json"})
    for found in (engine, router):
        assert found["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == "http://collector.monitoring:4318/v1/traces"
        assert (found["OTEL_TRACES_SAMPLER"], found["OTEL_TRACES_SAMPLER_ARG"]) == ("parentbased_traceidratio", "0.01")
        assert "blade.service=" in found["OTEL_RESOURCE_ATTRIBUTES"]
        assert found["BLADE_LOG_FORMAT"] == "json"
    assert (engine["OTEL_SERVICE_NAME"], router["OTEL_SERVICE_NAME"]) == ("blade_llm", "blade_router")


def test_nothing_is_said_without_them() -> None:
    for found in environments({}):
        assert not [name for name in found if name.startswith("OTEL_") or name == "BLADE_LOG_FORMAT"]


def test_what_the_engines_environment_says_counts_more() -> None:
    own = {"name": "OTEL_SERVICE_NAME", "value": "mine"}
    engine, _ = environments({"tracing": COLLECTOR, "engine": {"env": [own]}})
    assert engine["OTEL_SERVICE_NAME"] == "mine"


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [("http://c:4318", 4318), ("https://c/otlp/v1/traces", 443), ("http://c", 80), ("http://[fd00::1]:9", 9)],
)
@pytest.mark.parametrize("uri", ["file:///models/qwen", "hf://Qwen/Qwen2.5-0.5B"])
def test_traces_may_leave_the_pods(endpoint: str, port: int, uri: str) -> None:
    def open_ports(spec: dict[str, Any]) -> list[set[int]]:
        """Ports that engines and routers may connect to anywhere."""
        objects: list[Object] = service_objects(parse_service(service(spec)), DEFAULTS)
        policies = [each for each in objects if each["kind"] == "NetworkPolicy"]
        return [
            {
                one["port"]
                for rule in policy["spec"]["egress"]
                if any(peer == {"namespaceSelector": {}} for peer in rule.get("to", ()))
                for one in rule["ports"]
            }
            for policy in policies
        ]

    model = {"model": {"uri": uri}}
    for before, after in zip(open_ports(model), open_ports({**model, "tracing": {"endpoint": endpoint}}), strict=True):
        assert after == before | {port}
