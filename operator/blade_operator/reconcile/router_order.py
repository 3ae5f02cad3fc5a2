"""Routers before engines: engines that require the internal token wait until every router sends it."""

from __future__ import annotations

from collections.abc import Iterable

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_protocol import environment
from blade_protocol.labels import ROLE_ROUTER, SENDS_TOKEN


def refuses_a_router(template: Object, pods: Iterable[Object]) -> bool:
    """Whether an engine of this pod ``template`` would refuse the requests of a router among ``pods``.

    A router that terminates gets no new requests by the time that an engine has started.
    """
    return requires_token(template) and any(
        podutil.role(pod) == ROLE_ROUTER
        and not podutil.is_finished(pod)
        and not podutil.is_terminating(pod)
        and SENDS_TOKEN not in pod["metadata"]["labels"]
        for pod in pods
    )


def requires_token(template: Object) -> bool:
    """Whether the engine of this pod template requires the token on its public port."""
    containers = template["spec"]["containers"]
    return any(
        entry["name"] == environment.PUBLIC_TOKEN and entry.get("value") == "1"
        for container in containers
        for entry in container.get("env", ())
    )
