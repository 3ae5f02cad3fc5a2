"""The report of a service for its routers' web UI: the object, its pods and Events, without what may be secret."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_operator.redact_text import REDACTED, redact_text
from blade_operator.secret_names import hide_tokens, is_secret_name
from blade_operator.status.failures.container_failures import container_failure
from blade_operator.status.failures.pod_failures import pod_failure
from blade_protocol.labels import ROLE_ENGINE, ROLE_ROUTER
from blade_protocol.limits import SERVICE_REPORT_BYTES

MAX_EVENTS = 50
HIDDEN = "…"
"""Stands for what is not said."""
_USER = re.compile(r"(?<=://)[^/@\s?#]+(?=@)")
_QUERY = re.compile(r"(://[^\s?#]*\?)[^\s\"']+")
_ASSIGNS = re.compile(r"[=:]|--|(?i:bearer|basic)")
"""What has none of these can hold a token of a known form at most."""


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
    """``value`` without the values of environment variables, of flags that are named like secrets, the user and query
    of URLs, and what else looks like a credential (`redact_text`)."""
    if isinstance(value, dict):
        return {name: _field(name, each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return _items(value)
    if isinstance(value, str):
        if "://" in value:
            value = _QUERY.sub(rf"\1{HIDDEN}", _USER.sub(HIDDEN, value))
        return redact_text(value).replace(REDACTED, HIDDEN) if _ASSIGNS.search(value) else hide_tokens(value, HIDDEN)
    return value


def _field(name: str, value: Any) -> Any:
    if name == "env" and isinstance(value, list | tuple):
        return [_variable(each) for each in value]
    if name == "env" and isinstance(value, dict):
        return dict.fromkeys(value, HIDDEN)
    if isinstance(value, str) and is_secret_name(name):
        return HIDDEN
    return without_secrets(value)


def _variable(variable: Any) -> Any:
    if not isinstance(variable, dict) or "value" not in variable:
        return without_secrets(variable)
    return {**variable, "value": HIDDEN}


def _items(values: Sequence[Any]) -> list[Any]:
    """Of a command line the values of flags that are named like secrets are hidden."""
    found: list[Any] = []
    hides_next = False
    for each in values:
        name, sign, _ = each.partition("=") if isinstance(each, str) else ("", "", "")
        is_secret = name.startswith("-") and is_secret_name(name)
        if hides_next and isinstance(each, str) and not each.startswith("-"):
            found.append(HIDDEN)
        elif is_secret and sign:
            found.append(f"{name}={HIDDEN}")
        else:
            found.append(without_secrets(each))
        hides_next = is_secret and not sign
    return found


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
