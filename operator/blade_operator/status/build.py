"""Puts the whole status together."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from blade_operator import pods as read
from blade_operator.objects import Object
from blade_operator.status.conditions import Condition, conditions
from blade_operator.status.details import fit, preflight
from blade_operator.status.download import download
from blade_operator.status.failures import find_failures
from blade_operator.status.situation import Situation
from blade_protocol.labels import NAME, ROLE, ROLE_ENGINE
from blade_protocol.ports import ROUTER_PORT

MESSAGE_LIMIT = 1024

__all__ = ["Situation", "build_status"]


def build_status(situation: Situation, now: datetime) -> Object:
    """The status of one service. Equal to the one before when nothing worth telling has changed."""
    failures = find_failures(situation, now)
    model, memory = download(situation, now), fit(situation)
    found = conditions(situation, failures, model, memory, now)
    generation = int(situation.obj["metadata"].get("generation", 0))
    current = situation.current_pods
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "phase": phase(found, situation),
        "url": url(situation),
        "selector": f"{NAME}={situation.obj['metadata']['name']},{ROLE}={ROLE_ENGINE}",
        "replicas": len(situation.engine_pods),
        "readyReplicas": situation.ready_engines,
        "updatedReplicas": len(current),
        "drainingReplicas": len(situation.leaving_pods),
        "revision": {
            "current": situation.current,
            "previous": situation.previous,
            "updating": len(current) != len(situation.engine_pods)
            or sum(map(read.is_ready, current)) < situation.replicas,
            "outdated": situation.outdated,
        },
        "conditions": [_timed(condition, situation, generation, now) for condition in found],
    }
    optional = {
        "model": model,
        "preflight": preflight(situation),
        "fit": memory,
        "failures": [failure.as_status() for failure in failures],
    }
    return status | {name: value for name, value in optional.items() if value}


def phase(found: Sequence[Condition], situation: Situation) -> str:
    """One word for people."""
    by_type = {condition.type: condition for condition in found}
    if by_type["SpecValid"].status == "False":
        return "Invalid"
    if by_type["Ready"].reason == "ScaledToZero":
        return "ScaledToZero"
    degraded = by_type["Degraded"].status == "True"
    if by_type["Ready"].status == "True":
        return "Degraded" if degraded else "Progressing" if by_type["Progressing"].status == "True" else "Ready"
    if by_type["Progressing"].reason == "Stalled":
        return "Failed"
    return "Degraded" if degraded else "Progressing" if situation.engine_pods else "Pending"


def url(situation: Situation) -> str:
    """Where the OpenAI API answers: the router Service's published address, else its name in the cluster."""
    service = situation.router_service or {}
    scheme = _scheme(situation)
    for ingress in service.get("status", {}).get("loadBalancer", {}).get("ingress", ()):
        host = ingress.get("hostname") or ingress.get("ip")
        ports: Sequence[dict[str, Any]] = ingress.get("ports") or [{"port": ROUTER_PORT}]
        if host:
            return f"{scheme}://{f'[{host}]' if ':' in host else host}:{ports[0]['port']}/v1"
    metadata = situation.obj["metadata"]
    return f"{scheme}://{metadata['name']}-router.{metadata.get('namespace', 'default')}:{ROUTER_PORT}/v1"


def _scheme(situation: Situation) -> str:
    """What the router speaks: as the spec says, and while that is not valid, as the Service's port is called."""
    if situation.service is not None:
        return "http" if situation.service.spec.router.tls is None else "https"
    ports = (situation.router_service or {}).get("spec", {}).get("ports") or [{}]
    return "https" if ports[0].get("name") == "https" else "http"


def _timed(condition: Condition, situation: Situation, generation: int, now: datetime) -> dict[str, Any]:
    before = situation.condition(condition.type)
    since = before.get("lastTransitionTime") if before.get("status") == condition.status else None
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message[:MESSAGE_LIMIT],
        "lastTransitionTime": since or now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "observedGeneration": generation,
    }
