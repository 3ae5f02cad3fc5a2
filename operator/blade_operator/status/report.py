"""The report of a service for its routers' web UI: the object, its pods and Events, without what may be secret.

It goes to browsers, so more is left out than of what ``kubectl llm doctor`` packs up: all values of environment
variables, and whole queries of URLs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_operator.model.redact import REDACTED, redact_object
from blade_operator.status.failures.container_failures import container_failure
from blade_operator.status.failures.pod_failures import pod_failure
from blade_protocol.labels import ROLE_ENGINE, ROLE_ROUTER
from blade_protocol.limits import SERVICE_REPORT_BYTES

MAX_EVENTS = 50
_QUERY = re.compile(r"(://[^\s?#]*\?)[^\s\"']+")


def service_report(
    service: Object, status: Object, pods: Iterable[Object], events: Sequence[Object], now: datetime
) -> Object:
    """The report.

    Args:
        service: the LLMService, whose ``status`` is the one given instead.
        events: of the service, the newest last.
    """
    metadata = service["metadata"]
    return {
        "reported": round(now.timestamp(), 3),
        "object": {
            "apiVersion": service["apiVersion"],
            "kind": service["kind"],
            "metadata": {name: metadata[name] for name in ("name", "namespace", "generation") if name in metadata},
            "spec": without_secrets(service.get("spec") or {}),
            "status": without_secrets(status),
        },
        "pods": [_pod(pod, now) for pod in pods if podutil.role(pod) in (ROLE_ENGINE, ROLE_ROUTER)],
        "events": [without_secrets(event) for event in events[-MAX_EVENTS:]],
    }


def encode(report: Object, most: int = SERVICE_REPORT_BYTES) -> bytes:
    """The report as JSON of at most so many bytes: what does not fit is left out, the oldest Events first, then pods
    that are ready, then the spec."""
    report = dict(report)
    for shorten in (_fewer_events, _fewer_pods, _no_spec, _short_status):
        while len(body := msgspec.json.encode(report)) > most:
            if not shorten(report):
                break
    return body


def without_secrets(value: Any) -> Any:
    """``value`` without the values of environment variables, the queries of URLs, and what has the name or the form of
    a secret (:mod:`~blade_operator.model.redact`)."""
    return redact_object(_without_variables(value))


def _without_variables(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _variables(each) if name == "env" else _without_variables(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_variables(each) for each in value]
    return _QUERY.sub(rf"\1{REDACTED}", value) if isinstance(value, str) else value


def _variables(env: Any) -> Any:
    if isinstance(env, dict):
        return dict.fromkeys(env, REDACTED)
    if not isinstance(env, list | tuple):
        return _without_variables(env)
    return [
        {**each, "value": REDACTED} if isinstance(each, dict) and "value" in each else _without_variables(each)
        for each in env
    ]


def _pod(pod: Object, now: datetime) -> Object:
    failure = container_failure(pod) or pod_failure(pod, now)
    status = pod.get("status", {})
    return {
        "name": pod["metadata"]["name"],
        "role": podutil.role(pod),
        "phase": "Terminating" if podutil.is_terminating(pod) else str(status.get("phase", "Unknown")),
        "ready": podutil.is_ready(pod),
        "revision": podutil.revision(pod) or None,
        "node": pod.get("spec", {}).get("nodeName"),
        "restarts": sum(state.restarts for state in podutil.containers(pod)),
        "message": without_secrets(_message(failure.message, failure.last_log)) if failure is not None else None,
    }


def _message(message: str, last_log: str) -> str:
    return f"{message}: {last_log}" if last_log and last_log not in message else message


def _fewer_events(report: Object) -> bool:
    events = report["events"]
    report["events"] = events[(len(events) + 1) // 2 :]
    return bool(events)


def _fewer_pods(report: Object) -> bool:
    pods = sorted(report["pods"], key=lambda pod: bool(pod["ready"]))
    report["pods"] = pods[: len(pods) // 2]
    return bool(pods)


def _no_spec(report: Object) -> bool:
    obj = report["object"]
    report["object"] = {**obj, "spec": {}}
    return bool(obj["spec"])


def _short_status(report: Object) -> bool:
    """What the page cannot do without."""
    obj = report["object"]
    kept = ("phase", "url", "desiredReplicas", "replicas", "readyReplicas", "revision", "conditions")
    status = {name: value for name, value in obj["status"].items() if name in kept}
    report["object"] = {**obj, "status": status}
    return len(status) < len(obj["status"])
