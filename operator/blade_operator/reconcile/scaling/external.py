"""Mode External: somebody else sets ``spec.replicas`` through ``/scale``. The operator watches, and never writes it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from blade_operator.model.pods import age
from blade_operator.scaling import serialise
from blade_operator.scaling.autoscaler import Judgement
from blade_operator.scaling.serialise import Saved

IDLE_SECONDS: Final = 900.0
"""After which somebody who drives would have changed something, or there is no load to change it for."""
FLAP_SECONDS: Final = 600.0
"""In which several reversals mean that two pull in different directions."""
REVERSALS: Final = 3
_CHANGES: Final = 5
_CHANGE: Final = re.compile(r"(?P<at>\S+) (?P<before>\d+) -> (?P<after>\d+):")


def external(before: Mapping[str, Any], replicas: int, now: datetime) -> tuple[dict[str, Any], Judgement]:
    """``status.scaling`` and the condition. ``before``: the former, as it was written last."""
    same = before.get("mode") == "External"
    saved = (serialise.load(str(before.get("state", ""))) if same else None) or Saved(now.timestamp())
    changes = list(before.get("changes", ())) if same else []
    last = before.get("replicas") if same else None
    if last is not None and last != replicas:
        stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        changes = [*changes, f"{stamp} {last} -> {replicas}: spec.replicas was set"][-_CHANGES:]
    status = {
        "mode": "External",
        "replicas": replicas,
        "needed": replicas,
        "reason": "spec.replicas",
        "changes": changes,
        "state": before["state"] if same and before.get("state") else serialise.dump(Saved(saved.at)),
    }
    return status, _judgement(changes, saved.at, now)


def _judgement(changes: Sequence[str], since: float, now: datetime) -> Judgement:
    if _reversals(changes, now) >= REVERSALS:
        message = (
            f"spec.replicas went back and forth {_reversals(changes, now)} times in {FLAP_SECONDS / 60:.0f} minutes: "
            "do two HorizontalPodAutoscalers, or one and somebody else, set it?"
        )
        return Judgement("False", "SeveralDrivers", message)
    if not changes and now.timestamp() - since > IDLE_SECONDS:
        message = (
            "nothing has set spec.replicas yet: is there a HorizontalPodAutoscaler or ScaledObject for this "
            "LLMService, and does it read its metrics?"
        )
        return Judgement("Unknown", "ExternalIdle", message)
    return Judgement("True", "External", "spec.replicas is set from outside")


def _reversals(changes: Sequence[str], now: datetime) -> int:
    """How often recent changes went the other way than the one before."""
    recent = [found for each in changes if (found := _CHANGE.match(each)) and age(found["at"], now) <= FLAP_SECONDS]
    ways = [int(each["after"]) > int(each["before"]) for each in recent]
    return sum(one != other for one, other in itertools.pairwise(ways))
