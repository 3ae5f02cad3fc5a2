"""What the status says of LoRA adapters. They never make a service unready: requests for the model go on."""

from __future__ import annotations

from typing import Any

from blade_operator.status.conditions import Condition
from blade_operator.status.inputs import StatusInputs


def adapter_status(inputs: StatusInputs) -> dict[str, Any]:
    """The fields of the status; those of the last one while the spec is invalid."""
    if inputs.adapters is None:
        return {name: inputs.last_status.get(name) for name in ("adapters", "adaptersReady")}
    ready = sum(len(each.pods) >= each.desired and not each.reason for each in inputs.adapters)
    return {
        "adapters": [each.as_status() for each in inputs.adapters],
        "adaptersReady": f"{ready}/{len(inputs.adapters)}" if inputs.adapters else "",
    }


def adapters_ready(inputs: StatusInputs) -> list[Condition]:
    """Whether each adapter is where it is to be; no condition without adapters."""
    if inputs.adapters is None:
        before = inputs.last_condition("AdaptersReady")
        if not before:
            return []
        return [Condition("AdaptersReady", before["status"], before["reason"], before.get("message", ""))]
    if not inputs.adapters:
        return []
    missing = [each for each in inputs.adapters if each.reason or len(each.pods) < each.desired]
    if not missing:
        count = len(inputs.adapters)
        return [
            Condition("AdaptersReady", "True", "Loaded", f"{count} adapters are on all engines that are to have them")
        ]
    failed = [each for each in missing if each.failed]
    first = (failed or missing)[0]
    more = f"; {len(missing) - 1} more are missing" if len(missing) > 1 else ""
    message = f"adapter {first.name} is on {len(first.pods)} of {first.desired} engines: {first.reason}{more}"
    return [Condition("AdaptersReady", "False", "LoadFailed" if failed else "Loading", message)]
