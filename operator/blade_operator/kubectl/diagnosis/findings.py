"""What is wrong with services, in words, each with what to do: what the operator says, and what it cannot say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from blade_operator.kubectl.pods import failing, troubles, words
from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_operator.status.sleep import is_at_rest
from blade_protocol.labels import NAME, OWN_KINDS, ROLE_ENGINE, ROLE_ROUTER

Level = Literal["error", "warning"]
_ORDER: Final = ("error", "warning")
_FRESH_SECONDS: Final = 30.0
"""How long the operator may take to see a change."""
_RECENT_SECONDS: Final = 3600.0
_MANY_RESTARTS: Final = 3
_WELL_WHEN_FALSE: Final = frozenset({"Degraded", "Progressing", "Reconciling", "Stalled"})
_ADVICE: Final = {
    "SpecValid": "change the fields that the message names; `kubectl explain llm.spec` describes each",
    "ModelCached": "look at `kubectl llm logs NAME -c fetch`, and at spec.model with its Secrets and claim",
    "PreflightPassed": "look at `kubectl llm logs NAME -c check`; docs/check.md says what each item means",
    "ModelFits": "fewer or shorter requests (spec.engine.contextLength, maxNumSeqs), quantisation, or more memory",
    "RouterReady": "look at `kubectl llm logs NAME -c router`",
    "WorkersReady": "look at `kubectl llm logs NAME -c engine`",
    "AdaptersReady": "look at `kubectl llm adapters`; docs/lora.md says what an adapter must be",
    "Scaling": "look at spec.scaling, and at what the message says of its numbers",
    "SpeculationEffective": "turn spec.engine.speculative off, or choose another draft model",
    "Contested": "two operators want the service: docs/operator.md says how the annotation `installation` settles it",
    "RolloutAborted": "the message has the canary's numbers; `kubectl llm rollout retry NAME` tries it again",
    "InternalTokenRefused": "`kubectl llm rollout restart NAME` gives engines the operator's present key",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    level: Level
    about: str
    """Kind and name of the object."""
    problem: str
    advice: str
    """What to do."""


def find(services: Iterable[Object], pods: Iterable[Object], events: Iterable[Object], now: datetime) -> list[Finding]:
    """All findings, errors first."""
    every, found = list(pods), list[Finding]()
    for service in services:
        name = service["metadata"]["name"]
        found += _of_service(service, [pod for pod in every if _belongs(pod, name)], now)
    found += _of_events(events, now)
    unique = list(dict.fromkeys(found))
    return sorted(unique, key=lambda finding: _ORDER.index(finding.level))


def _belongs(pod: Object, service: str) -> bool:
    return (pod["metadata"].get("labels") or {}).get(NAME) == service


def _of_service(service: Object, pods: list[Object], now: datetime) -> Iterator[Finding]:
    metadata, status = service["metadata"], service.get("status", {})
    about, name = f"LLMService {metadata['name']}", metadata["name"]
    behind = status.get("observedGeneration", 0) < metadata.get("generation", 0)
    if behind and podutil.age(metadata.get("creationTimestamp"), now) > _FRESH_SECONDS:
        problem = "the operator has not seen its latest change" if status else "no operator has ever looked at it"
        yield Finding(
            *("error", about, problem),
            "see that the operator runs (kubectl get pods -A -l app.kubernetes.io/name=bladellm-operator) and may work "
            "in this namespace (--namespaces)",
        )
    known = set[str]()
    for each in troubles(service):
        known.add(each.pod)
        first = f"{each}" + (f"; its last line: {each.last_log}" if each.last_log else "")
        advice = f"`kubectl llm logs {name}` shows its log" if each.container else "change what the message names"
        yield Finding("error", about, first, advice)
    yield from _of_conditions(about, name, status, bool(known))
    for pod in pods:
        if pod["metadata"]["name"] not in known:
            yield from _of_pod(pod, name)
    yield from _of_counts(about, name, status, pods)


def _of_conditions(about: str, name: str, status: Object, explained: bool) -> Iterator[Finding]:
    for each in status.get("conditions") or ():
        kind = each["type"]
        if kind == "Ready" or kind in _WELL_WHEN_FALSE or is_at_rest(each.get("reason", "")):
            continue
        if kind == "WorkersReady" and explained:
            continue
        bad = each["status"] == ("True" if kind in ("Contested", "RolloutAborted", "InternalTokenRefused") else "False")
        if not bad:
            continue
        advice = _ADVICE.get(kind, "docs/troubleshooting.md has more").replace("NAME", name)
        yield Finding("error", about, f"{kind} ({each.get('reason', '')}): {each.get('message', '')}", advice)
    for entry in status.get("preflight") or ():
        for item in entry.get("items") or ():
            if item["status"] == "WARNING":
                problem = f"check of {entry['pod']}: {item['name']}: {item.get('detail', '')}"
                yield Finding("warning", about, problem, "docs/check.md says what to change")
    for adapter in status.get("adapters") or ():
        if adapter.get("reason"):
            problem = f"adapter {adapter['name']} is not where it is to be: {adapter['reason']}"
            yield Finding("error", about, problem, _ADVICE["AdaptersReady"])


def _of_pod(pod: Object, service: str) -> Iterator[Finding]:
    about = f"Pod {pod['metadata']['name']}"
    scheduled = podutil.condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        yield Finding(
            *("error", about, f"it is not scheduled: {scheduled.get('message', '')}"),
            "free what the message names, or ask for less in spec.engine.gpus and resources",
        )
    for state in podutil.containers(pod):
        if failing(state):
            advice = f"`kubectl llm logs {service}` shows its log"
            yield Finding("error", about, f"container {state.name}: {words(state)}", advice)
        elif state.restarts >= _MANY_RESTARTS:
            advice = f"`kubectl llm logs pod/{pod['metadata']['name']} -c {state.name} --previous` shows the run before"
            yield Finding("warning", about, f"container {state.name} was restarted {state.restarts} times", advice)


def _of_counts(about: str, name: str, status: Object, pods: list[Object]) -> Iterator[Finding]:
    if status.get("phase") in (None, "Pending", "Invalid"):
        return
    if not any(podutil.role(pod) == ROLE_ROUTER for pod in pods):
        yield Finding(
            "error", about, "it has no router pods", f"`kubectl llm status {name}`: does the cluster refuse them?"
        )
    if status.get("desiredReplicas") and not any(podutil.role(pod) == ROLE_ENGINE for pod in pods):
        yield Finding(
            "error", about, "it has no engine pods", "look at the events of its Deployment: a quota, a policy?"
        )


def _of_events(events: Iterable[Object], now: datetime) -> Iterator[Finding]:
    """Warnings of the last hour, the newest of each kind; those about services are the status in other words."""
    newest: dict[tuple[str, str, str], Object] = {}
    for event in sorted(events, key=_seen):
        about = event.get("involvedObject") or {}
        if event.get("type") != "Warning" or about.get("kind") in OWN_KINDS:
            continue
        if podutil.age(_seen(event), now) <= _RECENT_SECONDS:
            newest[about.get("kind", ""), about.get("name", ""), event.get("reason", "")] = event
    for (kind, name, reason), event in newest.items():
        times = f" ({event['count']} times)" if (event.get("count") or 1) > 1 else ""
        advice = "Kubernetes said so within the last hour; nothing to do if it does not come again"
        yield Finding("warning", f"{kind} {name}", f"{reason}: {event.get('message', '')}{times}", advice)


def _seen(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


def now() -> datetime:
    """The present time."""
    return datetime.now(UTC)
