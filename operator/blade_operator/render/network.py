"""NetworkPolicies: who may open connections to the pods. A cluster's network enforces them, or does not."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from blade_operator.model.objects import Object
from blade_operator.render.egress import engine_egress, router_egress, tcp
from blade_operator.render.meta import Defaults, engine_name, make, router_name, selector
from blade_operator.render.workloads import members_name, members_selector
from blade_operator.spec.parse import LLMService
from blade_protocol.labels import OPERATOR, ROLE_ENGINE, ROLE_MEMBER, ROLE_ROUTER
from blade_protocol.ports import ENGINE_PORT, INTERNAL_PORT_OFFSET, ROUTER_ADMIN_PORT, ROUTER_PORT

INTERNAL_PORT: Final = ENGINE_PORT + INTERNAL_PORT_OFFSET


def network_policies(
    service: LLMService, defaults: Defaults, sidecars: Collection[str] = (), groups: bool = False
) -> list[Object]:
    """Everyone reaches the routers' public port; routers, operator and Prometheus what each needs of the others.

    The admin port of routers is open to each other, too: replicas of a router exchange what they know. Roles with
    ``sidecars`` have containers that others put into their pods, and may connect to anything. ``groups``: engines on
    several machines are there, whose pods reach each other on every port: collectives choose theirs as they go.
    """
    if not service.spec.security.network_policy:
        return []
    of_engines, of_routers = selector(service, ROLE_ENGINE), selector(service, ROLE_ROUTER)
    routers = [{"podSelector": {"matchLabels": of_routers}}]
    operator = [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": defaults.operator_namespace}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": OPERATOR}},
        }
    ]
    prometheus = _prometheus(defaults)
    engines = [
        {"from": routers, "ports": [tcp(ENGINE_PORT), tcp(INTERNAL_PORT)]},
        {"from": operator, "ports": [tcp(INTERNAL_PORT)]},
        *({"from": [peer], "ports": [tcp(ENGINE_PORT)]} for peer in prometheus),
    ]
    everyone = {"ports": [tcp(ROUTER_PORT)]}
    admin = {"from": [*routers, *operator, *prometheus], "ports": [tcp(ROUTER_ADMIN_PORT)]}
    out = {ROLE_ENGINE: engine_egress(service), ROLE_ROUTER: router_egress(service, defaults.api_server)}
    out |= dict.fromkeys(sidecars)
    return [
        _policy(service, engine_name(service), ROLE_ENGINE, of_engines, engines, out[ROLE_ENGINE]),
        *([_of_members(service, out[ROLE_ENGINE])] if groups or service.spec.engine.gpus.nodes > 1 else []),
        _policy(service, router_name(service), ROLE_ROUTER, of_routers, [everyone, admin], out[ROLE_ROUTER]),
    ]


def _of_members(service: LLMService, egress: list[Object] | None) -> Object:
    """The policy of the pods of engines on several machines; that of engines applies to their leaders, too."""
    pods = members_selector(service)
    each_other = [{"podSelector": {"matchLabels": pods}}]
    out = None if egress is None else [*egress, {"to": each_other}]
    return _policy(service, members_name(service), ROLE_MEMBER, pods, [{"from": each_other}], out)


def _prometheus(defaults: Defaults) -> list[Object]:
    """The pods that may scrape metrics; engines have theirs on the public port."""
    if not defaults.prometheus_namespaces:
        return []
    among = {
        "key": "kubernetes.io/metadata.name",
        "operator": "In",
        "values": list(defaults.prometheus_namespaces),
    }
    return [
        {
            "namespaceSelector": {"matchExpressions": [among]},
            "podSelector": {"matchLabels": dict(defaults.prometheus_labels)},
        }
    ]


def _policy(
    service: LLMService,
    name: str,
    role: str,
    pods: dict[str, str],
    ingress: list[Object],
    egress: list[Object] | None,
) -> Object:
    """The policy of the pods with these labels. ``egress`` None: what they connect to is not restricted."""
    spec = {
        "podSelector": {"matchLabels": dict(pods)},
        "policyTypes": ["Ingress"] if egress is None else ["Ingress", "Egress"],
        "ingress": ingress,
        **({} if egress is None else {"egress": egress}),
    }
    return make(service, "networking.k8s.io/v1", "NetworkPolicy", name, role, spec=spec)
