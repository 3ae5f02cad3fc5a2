"""Builds the whole status from its parts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from blade_operator.model import pods as podutil
from blade_operator.model.canary import ABORTED
from blade_operator.model.objects import Object
from blade_operator.status.adapters import adapter_status, adapters_ready
from blade_operator.status.condition import Condition
from blade_operator.status.conditions import EXCEEDED, conditions
from blade_operator.status.cost import cost
from blade_operator.status.details import fit, preflight
from blade_operator.status.download import download
from blade_operator.status.failures.find import find_failures
from blade_operator.status.inputs import StatusInputs
from blade_operator.status.scaling import scaling, scaling_works
from blade_operator.status.sleep import is_asleep
from blade_operator.status.speculation import speculation, speculation_effective
from blade_protocol.labels import NAME, ROLE, ROLE_ENGINE
from blade_protocol.ports import ROUTER_PORT

MESSAGE_LIMIT = 1024


def build_status(inputs: StatusInputs, now: datetime) -> Object:
    """The status of one service. Equal to the last one when nothing significant has changed."""
    failures = find_failures(inputs, now)
    model, memory = download(inputs, now), fit(inputs)
    found = [*conditions(inputs, failures, model, memory, now), *adapters_ready(inputs)]
    found += [*speculation_effective(inputs), *scaling_works(inputs)]
    generation = int(inputs.obj["metadata"].get("generation", 0))
    current = inputs.current_pods
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "phase": phase(found, inputs),
        "url": url(inputs),
        "selector": f"{NAME}={inputs.obj['metadata']['name']},{ROLE}={ROLE_ENGINE}",
        "desiredReplicas": inputs.replicas,
        "replicas": len(inputs.engine_pods),
        "readyReplicas": inputs.ready_engines,
        "updatedReplicas": len(inputs.updated_pods),
        "drainingReplicas": len(inputs.terminating_pods),
        "revision": {
            "current": inputs.current,
            "previous": inputs.previous,
            "updating": len(current) != len(inputs.engine_pods)
            or sum(map(podutil.is_ready, current)) < inputs.replicas,
            "outdated": inputs.outdated,
            **inputs.rollout.as_status(),
        },
        "conditions": [_timed(condition, inputs, generation, now) for condition in found],
    }
    optional = {
        "installation": inputs.installation,
        "model": model,
        "preflight": preflight(inputs),
        "fit": memory,
        "speculation": speculation(inputs),
        "scaling": scaling(inputs),
        "cost": cost(inputs, now),
        "canary": inputs.canary.as_status() if inputs.canary else None,
        **adapter_status(inputs),
        "failures": [failure.as_status() for failure in failures],
    }
    return status | {name: value for name, value in optional.items() if value}


def phase(found: Sequence[Condition], inputs: StatusInputs) -> str:
    """A summary of the conditions in one word."""
    by_type = {condition.type: condition for condition in found}
    if by_type["SpecValid"].status == "False":
        return "Invalid"
    if by_type["Ready"].reason == "ScaledToZero":
        return "ScaledToZero"
    degraded = by_type["Degraded"].status == "True"
    if is_asleep(by_type["Ready"].reason) and not degraded:
        return by_type["Ready"].reason
    if by_type["Ready"].status == "True":
        return "Degraded" if degraded else "Progressing" if by_type["Progressing"].status == "True" else "Ready"
    serves = by_type["WorkersReady"].status == by_type["RouterReady"].status == "True"
    if by_type["Progressing"].reason in ("Stalled", EXCEEDED) and not serves:
        return "Failed"
    degraded = degraded or by_type["Progressing"].reason in (EXCEEDED, ABORTED)
    return "Degraded" if degraded else "Progressing" if inputs.engine_pods else "Pending"


def url(inputs: StatusInputs) -> str:
    """URL of the OpenAI API: the router Service's published address, else its name in the cluster."""
    service = inputs.router_service or {}
    scheme = _scheme(inputs)
    for ingress in service.get("status", {}).get("loadBalancer", {}).get("ingress", ()):
        host = ingress.get("hostname") or ingress.get("ip")
        ports: Sequence[dict[str, Any]] = ingress.get("ports") or [{"port": ROUTER_PORT}]
        if host:
            return f"{scheme}://{f'[{host}]' if ':' in host else host}:{ports[0]['port']}/v1"
    metadata = inputs.obj["metadata"]
    return f"{scheme}://{metadata['name']}-router.{metadata.get('namespace', 'default')}:{ROUTER_PORT}/v1"


def _scheme(inputs: StatusInputs) -> str:
    """The URL scheme: as the spec says, or while that is invalid, as the Service's port is named."""
    if inputs.service is not None:
        return "http" if inputs.service.spec.router.tls is None else "https"
    ports = (inputs.router_service or {}).get("spec", {}).get("ports") or [{}]
    return "https" if ports[0].get("name") == "https" else "http"


def _timed(condition: Condition, inputs: StatusInputs, generation: int, now: datetime) -> dict[str, Any]:
    before = inputs.last_condition(condition.type)
    since = before.get("lastTransitionTime") if before.get("status") == condition.status else None
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message[:MESSAGE_LIMIT],
        "lastTransitionTime": since or now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "observedGeneration": generation,
    }
