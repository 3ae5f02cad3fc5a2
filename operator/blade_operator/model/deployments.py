"""Readers of Deployment objects."""

from __future__ import annotations

from collections.abc import Iterable

from blade_operator.model.objects import Object
from blade_protocol.labels import ROLE, ROLE_ROUTER


def router_deployment(deployments: Iterable[Object]) -> Object | None:
    """The routers' Deployment; None when there is none."""
    for deployment in deployments:
        # By its selector, which is immutable, unlike its labels.
        if (deployment["spec"]["selector"].get("matchLabels") or {}).get(ROLE) == ROLE_ROUTER:
            return deployment
    return None


def router_replicas(deployments: Iterable[Object]) -> int | None:
    """``spec.replicas`` of the routers' Deployment; None when there is none."""
    deployment = router_deployment(deployments)
    return None if deployment is None else int(deployment["spec"].get("replicas", 1))
