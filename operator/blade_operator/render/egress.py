"""What engines and routers may connect to, as rules of their NetworkPolicies; None where that cannot be known.

An engine's pod downloads the model, its draft model and its adapters (these while it serves) from a hub, bucket or
registry anywhere on the internet or in the cluster, through a proxy or not: the ports are in the service's spec. With
``engine.vision`` it fetches images from public addresses, too. A router needs the API server, whose address no selector
can match: it is restricted where the installation says what that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from blade_operator.model.objects import Object
from blade_operator.model.pods import CHECK, ENGINE, FETCH, ROUTER
from blade_operator.model.telemetry import collector_port
from blade_operator.render.meta import selector
from blade_operator.render.outbound import has_unknown_containers, outbound_ports, registry_ports
from blade_operator.spec.parse import LLMService
from blade_protocol.labels import ROLE_ENGINE, ROLE_ROUTER
from blade_protocol.ports import ENGINE_PORT, INTERNAL_PORT_OFFSET, ROUTER_ADMIN_PORT

DNS: Final[Object] = {
    # 5353: where OpenShift's DNS pods listen behind their Service's port 53.
    "ports": [{"protocol": protocol, "port": port} for protocol in ("UDP", "TCP") for port in (53, 5353)]
}
_PUBLIC: Final[list[Object]] = [
    # Images are at URLs that clients choose. The engine's own check of addresses is stricter, and comes first.
    {
        "ipBlock": {
            "cidr": "0.0.0.0/0",
            "except": [
                "10.0.0.0/8",
                "100.64.0.0/10",
                "127.0.0.0/8",
                "169.254.0.0/16",
                "172.16.0.0/12",
                "192.168.0.0/16",
            ],
        }
    },
    {"ipBlock": {"cidr": "2000::/3"}},
]
_ANYWHERE: Final[list[Object]] = [
    # Not link-local: there a cloud's metadata service gives out the machine's credentials.
    {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}},
    {"ipBlock": {"cidr": "::/0", "except": ["fe80::/10", "fd00:ec2::254/128"]}},
    # Some networks match no pod by its address.
    {"namespaceSelector": {}},
]


def engine_egress(service: LLMService) -> list[Object] | None:
    """Rules for a service's engine pods."""
    engine = service.spec.engine
    if has_unknown_containers(engine.pod_template, (ENGINE, CHECK, FETCH)):
        return None
    if not service.spec.model.downloaded:
        return [DNS, *_collector(service), *_images(service)]
    ports = outbound_ports(engine.env, engine.pod_template)
    registries = [registry_ports(uri, engine.env, engine.pod_template) for uri in _origins(service)]
    if ports is None or None in registries:
        return None
    traces = {port} if (port := collector_port(service)) is not None else set()
    found = {443, *ports, *traces}.union(*(each for each in registries if each is not None))
    return [DNS, {"to": _ANYWHERE, "ports": [tcp(port) for port in sorted(found)]}, *_images(service)]


def _origins(service: LLMService) -> list[str]:
    """Where the engines' pods download from."""
    spec, speculative = service.spec, service.spec.engine.speculative
    draft = None if speculative is None else speculative.draft_model
    return [spec.model.uri, *([] if draft is None else [draft.uri]), *(adapter.uri for adapter in spec.adapters)]


def router_egress(service: LLMService, api_server: Sequence[tuple[str, int]]) -> list[Object] | None:
    """Rules for a service's router pods; ``api_server``: its addresses, as CIDR and port."""
    if not api_server or has_unknown_containers(service.spec.router.pod_template, (ROUTER,)):
        return None
    engines = [{"podSelector": {"matchLabels": selector(service, ROLE_ENGINE)}}]
    routers = [{"podSelector": {"matchLabels": selector(service, ROLE_ROUTER)}}]
    return [
        DNS,
        *({"to": [{"ipBlock": {"cidr": cidr}}], "ports": [tcp(port)]} for cidr, port in api_server),
        {"to": engines, "ports": [tcp(ENGINE_PORT), tcp(ENGINE_PORT + INTERNAL_PORT_OFFSET)]},
        {"to": routers, "ports": [tcp(ROUTER_ADMIN_PORT)]},
        *_collector(service),
    ]


def _collector(service: LLMService) -> list[Object]:
    """The rule for traces: a collector may be anywhere."""
    port = collector_port(service)
    return [] if port is None else [{"to": _ANYWHERE, "ports": [tcp(port)]}]


def _images(service: LLMService) -> list[Object]:
    """The rule for images at URLs, where the spec speaks of images at all."""
    vision = service.spec.engine.vision
    if vision is None or not vision.enabled:
        return []
    return [{"to": _PUBLIC, "ports": [tcp(80), tcp(443)]}]


def tcp(port: int) -> Object:
    """One port of a rule."""
    return {"protocol": "TCP", "port": port}
