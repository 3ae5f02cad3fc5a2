"""Zero and back: what the status says of a service that has no engine until a request comes.

It sleeps when nobody has asked for anything, and wakes for the first request, which waits in a router meanwhile: so it
is ready all the time, unless what starts then fails. A service that its user has scaled to zero is neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from blade_operator.model.plan import EventRecord
from blade_operator.status.inputs import StatusInputs

SLEEPING: Final = "Sleeping"
SCALED_TO_ZERO: Final = "ScaledToZero"
WAKING: Final = "Waking"
WORKERS: Final = "WorkersReady"
"""The condition whose reasons these are; Ready and the phase follow it."""


def is_asleep(reason: str) -> bool:
    """Whether a condition with this reason is of a service that sleeps or wakes."""
    return reason in (SLEEPING, WAKING)


def is_at_rest(reason: str) -> bool:
    """Whether a condition with this reason is of a service that has no engines because it is to have none, or wakes."""
    return is_asleep(reason) or reason == SCALED_TO_ZERO


def was_asleep(inputs: StatusInputs) -> bool:
    """Whether the service slept, or was about to wake, when its status was written last."""
    return is_asleep(inputs.last_condition(WORKERS).get("reason", ""))


def why_none(inputs: StatusInputs) -> tuple[str, str]:
    """Reason and message where there are to be no engines."""
    if inputs.sleeps:
        scaling = inputs.scaling or {}
        warm = f" ({scaling['standby']} on standby)" if scaling.get("standby") else ""
        return SLEEPING, f"{scaling.get('reason') or 'no request'}: the next one wakes it{warm}"
    return SCALED_TO_ZERO, "spec.replicas is 0"


def events(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[EventRecord]:
    """Events for falling asleep, waking, and being awake."""
    was, now = _workers(before), _workers(after)
    reason = now.get("reason", "")
    if is_asleep(reason) and reason != was.get("reason", ""):
        yield EventRecord("Normal", reason, now.get("message", ""))
    if now.get("status") == "True" and was.get("reason") == WAKING:
        took = _seconds_awake(after, now["lastTransitionTime"])
        yield EventRecord("Normal", "Woke", f"an engine is ready{'' if took is None else f' after {took} s'}")


def _workers(status: Mapping[str, Any]) -> dict[str, Any]:
    return next((each for each in status.get("conditions", ()) if each["type"] == WORKERS), {})


def _seconds_awake(status: Mapping[str, Any], until: str) -> int | None:
    """Seconds since the last decision to wake; None: it is not known any more."""
    changes = (status.get("scaling") or {}).get("changes") or ()
    waking = next((change for change in reversed(changes) if " 0 -> " in change), None)
    if waking is None:
        return None
    return max(0, round((datetime.fromisoformat(until) - datetime.fromisoformat(waking.split()[0])).total_seconds()))
