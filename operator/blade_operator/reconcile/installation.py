"""Two installations that watch one service would undo each other's writes for ever: so one owns it, the other refuses.

The first to reconcile a service claims it in its status, before it writes anything else. It keeps it until the user
assigns the service to another one by annotation, or until its Lease has long expired. An installation that refuses says
so in one condition and writes nothing else; the owner leaves that condition alone, for a while: then it shows whether
the other one is still there.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from blade_operator.model import pods as podutil
from blade_operator.model.installation import assigned, claimed
from blade_operator.model.objects import Object
from blade_operator.model.observed import Observed
from blade_operator.model.plan import Plan
from blade_protocol.labels import INSTALLATION

CONTESTED = "Contested"
"""The condition that an installation leaves on the service of another one."""
CONTESTED_SECONDS = 3600.0
"""Seconds after which the owner drops it; who refuses writes it again."""


def refusal(observed: Observed, installation: str, now: datetime) -> Plan | None:
    """The plan for a service that is not this installation's; None when it is, or when it may claim it.

    Without a name, as in the local runtime, there is no other installation.
    """
    if not belongs_elsewhere(observed, installation):
        return None
    owner = _owner(observed)
    status = observed.service.get("status") or {}
    message = (
        f"{_said_by(installation)} this service, too, and leaves it alone: it belongs to {owner}; to hand it over, "
        f"annotate it with {INSTALLATION}={installation}"
    )
    conditions = [entry for entry in status.get("conditions") or () if entry["type"] != CONTESTED]
    kept = contested(status, "", now)
    if kept is not None and kept["message"] == message:
        return Plan()
    stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    entry = {
        "type": CONTESTED,
        "status": "True",
        "reason": "OtherInstallation",
        "message": message,
        "lastTransitionTime": stamp,
        "observedGeneration": int(observed.service["metadata"].get("generation", 0)),
    }
    return Plan(claim={**status, "conditions": [*conditions, entry]})


def belongs_elsewhere(observed: Observed, installation: str) -> bool:
    """Whether the service is another installation's: it is left alone, and so are its engines."""
    return bool(installation) and _owner(observed) not in ("", installation)


def _owner(observed: Observed) -> str:
    return assigned(observed.service) or ("" if observed.abandoned else claimed(observed.service))


def claim(service: Object, installation: str) -> Object | None:
    """The status that makes ``service`` this installation's; None when it is already."""
    if claimed(service) == installation:
        return None
    return {**(service.get("status") or {}), "installation": installation}


def contested(status: dict[str, Any], installation: str, now: datetime) -> dict[str, Any] | None:
    """The condition that another installation than this one left in ``status``, while it is recent."""
    found = next((entry for entry in status.get("conditions") or () if entry["type"] == CONTESTED), None)
    if found is None or podutil.age(found.get("lastTransitionTime"), now) > CONTESTED_SECONDS:
        return None
    own = str(found.get("message", "")).startswith(_said_by(installation))  # from before it took the service over
    return None if own else found


def _said_by(installation: str) -> str:
    return f"installation {installation} watches"
