"""The status of a ``LoRAAdapter``: what each service that selects it says of it, and what that comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from blade_operator.adapters.decide import AdapterStatus
from blade_operator.adapters.selection import Selection
from blade_operator.model.objects import Object

_LIMIT: Final = 64
"""Services that a status names."""
_TEXT: Final = 1024


def entries(service: str, selection: Selection, statuses: Sequence[AdapterStatus]) -> dict[str, Object]:
    """What ``service`` says of each LoRAAdapter that it selects, by name."""
    found: dict[str, Object] = {}
    for each in statuses:
        if each.name in selection.taken:
            found[each.name] = _entry(service, each.desired, len(each.pods), each.reason)
    return found | {name: _entry(service, 0, 0, reason) for name, reason in selection.left_out.items()}


def changed(service: str, objects: Sequence[Object], wanted: Mapping[str, Object]) -> dict[str, Object | None]:
    """Those of ``objects`` whose status says something else of ``service`` than ``wanted``: the new entries by name;
    None: there is to be none."""
    found: dict[str, Object | None] = {}
    for obj in objects:
        name, status = obj["metadata"]["name"], obj.get("status") or {}
        current, entry = _of(status, service), wanted.get(name)
        outdated = entry and status.get("observedGeneration") != obj["metadata"].get("generation")
        if (current != entry or outdated) and (current or _has_room(status, service)):
            found[name] = entry
    return found


def updated(obj: Object, service: str, entry: Object | None, now: datetime) -> Object:
    """The status of ``obj`` with the entry of ``service``; empty when no service selects it any more."""
    status: Object = obj.get("status") or {}
    services = [each for each in status.get("services", ()) if each["service"] != service]
    services = sorted([*services, *([entry] if entry else [])], key=lambda each: str(each["service"]))[:_LIMIT]
    if not services:
        return {}
    generation = obj["metadata"].get("generation", 0)
    desired, loaded = (sum(each.get(count, 0) for each in services) for count in ("desired", "loaded"))
    ready, reason, message = _judge(services, loaded)
    before: Object = next((each for each in status.get("conditions", ()) if each["type"] == "Ready"), {})
    since = before.get("lastTransitionTime") if before.get("status") == ready else None
    condition = {
        "type": "Ready",
        "status": ready,
        "reason": reason,
        "message": message[:_TEXT],
        "lastTransitionTime": since or now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "observedGeneration": generation,
    }
    return {
        "observedGeneration": generation,
        "engines": f"{loaded}/{desired}",
        "services": services,
        "conditions": [condition],
    }


def _judge(services: Sequence[Mapping[str, Any]], loaded: int) -> tuple[str, str, str]:
    """Status, reason and message of the condition."""
    for each in services:
        if not each["desired"]:
            return "False", "LeftOut", f"{each['service']}: {each['reason']}"
    for each in services:
        if each.get("reason") or each["loaded"] < each["desired"]:
            return "False", "Loading", f"{each['service']}: {each.get('reason') or 'engines load it'}"
    return "True", "Loaded", f"it is on {loaded} engines"


def _has_room(status: Object, service: str) -> bool:
    """Whether an entry of ``service`` would be among those that a status names: the first in order of names."""
    services = status.get("services", ())
    return len(services) < _LIMIT or service < services[-1]["service"]


def _of(status: Object, service: str) -> Object | None:
    return next((each for each in status.get("services", ()) if each["service"] == service), None)


def _entry(service: str, desired: int, loaded: int, reason: str) -> Object:
    entry: Object = {"service": service, "desired": desired, "loaded": loaded}
    return entry | ({"reason": reason[:_TEXT]} if reason else {})
