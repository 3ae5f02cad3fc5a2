"""What the status says of LoRA adapters. They never make a service unready: requests for the model go on."""

from __future__ import annotations

from typing import Any

from blade_operator.spec.adapters.fields import MOST_ADAPTERS
from blade_operator.status.condition import Condition
from blade_operator.status.inputs import StatusInputs


def adapter_status(inputs: StatusInputs) -> dict[str, Any]:
    """The fields of the status; those of the last one while the spec is invalid."""
    if inputs.adapters is None:
        return {name: inputs.last_status.get(name) for name in ("adapters", "adaptersReady")}
    declared = [each for each in inputs.adapters if each.desired]
    ready = sum(len(each.pods) >= each.desired and not each.reason for each in declared)
    return {
        "adapters": [each.as_status() for each in inputs.adapters[:MOST_ADAPTERS]],
        "adaptersReady": f"{ready}/{len(declared)}" if declared else "",
    }


def adapters_ready(inputs: StatusInputs) -> list[Condition]:
    """Whether each adapter is where it is to be; no condition without adapters."""
    if inputs.adapters is None:
        before = inputs.last_condition("AdaptersReady")
        if not before:
            return []
        return [Condition("AdaptersReady", before["status"], before["reason"], before.get("message", ""))]
    if not inputs.adapters and not inputs.left_out:
        return []
    missing = [each for each in inputs.adapters if each.desired and (each.reason or len(each.pods) < each.desired)]
    if not missing and inputs.left_out:
        name, reason = min(inputs.left_out.items())
        more = f"; {len(inputs.left_out) - 1} more are left out" if len(inputs.left_out) > 1 else ""
        return [Condition("AdaptersReady", "False", "LeftOut", f"LoRAAdapter {name} is left out: {reason}{more}")]
    if not missing:
        count = sum(each.desired > 0 for each in inputs.adapters)
        return [
            Condition("AdaptersReady", "True", "Loaded", f"{count} adapters are on all engines that are to have them")
        ]
    failed = [each for each in missing if each.failed]
    first = (failed or missing)[0]
    more = f"; {len(missing) - 1} more are missing" if len(missing) > 1 else ""
    message = f"adapter {first.name} is on {len(first.pods)} of {first.desired} engines: {first.reason}{more}"
    return [Condition("AdaptersReady", "False", "LoadFailed" if failed else "Loading", message)]
