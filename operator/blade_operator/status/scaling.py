"""What the status says of the number of engines, and of who decides on it."""

from __future__ import annotations

from typing import Any, Final

from blade_operator.status.condition import Condition
from blade_operator.status.inputs import StatusInputs

KIND: Final = "Scaling"


def scaling(inputs: StatusInputs) -> dict[str, Any] | None:
    """``status.scaling``; the last one while the spec is invalid."""
    if inputs.service is None:
        return inputs.last_status.get("scaling")
    return None if inputs.scaling is None else dict(inputs.scaling)


def scaling_works(inputs: StatusInputs) -> list[Condition]:
    """Whether what is needed is known and allowed; no condition where nobody decides."""
    if inputs.service is None:
        before = inputs.last_condition(KIND)
        return [Condition(KIND, before["status"], before["reason"], before.get("message", ""))] if before else []
    found = inputs.scaling_judgement
    return [] if found is None else [Condition(KIND, found.status, found.reason, found.message)]
