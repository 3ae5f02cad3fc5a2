"""What conditions say of a canary."""

from __future__ import annotations

from blade_operator.model import pods as podutil
from blade_operator.model.canary import ABORTED
from blade_operator.status.condition import Condition
from blade_operator.status.inputs import StatusInputs


def canary_progress(inputs: StatusInputs) -> Condition | None:
    """``Progressing`` while a canary has been aborted or may yet be; None where it says what it says anyway."""
    canary = inputs.canary
    if canary is None or inputs.service is None:
        return None
    new = [pod for pod in inputs.engine_pods if podutil.revision(pod) == canary.revision]
    if canary.phase == "Aborted":
        if new:
            message = f"the engines of revision {canary.revision} leave, {canary.stable} serves"
            return Condition("Progressing", "True", "Aborting", message)
        stable = sum(podutil.revision(pod) == canary.stable and podutil.is_ready(pod) for pod in inputs.engine_pods)
        if stable >= inputs.replicas and not inputs.older_routers:
            return Condition("Progressing", "False", ABORTED, not_promoted(inputs, canary.reason))
        return None
    if canary.phase == "Running":
        message = f"revision {canary.revision} has {canary.weight} % of the requests, {canary.stable} the others"
        return Condition("Progressing", "True", "Canary", message)
    if canary.phase == "Shadowing":
        message = f"revision {canary.revision} gets copies of requests, {canary.stable} answers all: {canary.note}"
        return Condition("Progressing", "True", "Canary", message.removesuffix(": "))
    if canary.phase == "Waiting":
        ready = sum(map(podutil.is_ready, new))
        message = (
            f"revision {canary.revision} waits for engines ({ready} ready) and has {canary.weight} % of the requests, "
            f"{canary.stable} the others"
        )
        return Condition("Progressing", "True", "Canary", message)
    return None


def aborted(inputs: StatusInputs) -> list[Condition]:
    """``RolloutAborted``, only while it is True."""
    canary = inputs.canary
    if canary is None or canary.phase != "Aborted":
        return []
    return [Condition(ABORTED, "True", "WorseThanStable", canary.reason)]


def not_promoted(inputs: StatusInputs, reason: str) -> str:
    """What an abort means for the service."""
    canary = inputs.canary
    assert canary is not None
    return f"revision {canary.revision} is worse than {canary.stable}, which serves until the spec changes: {reason}"
