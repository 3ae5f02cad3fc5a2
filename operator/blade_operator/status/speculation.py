"""What the status says of speculative decoding. It never makes a service unready: without drafts responses are the
same, only later."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

from blade_operator.model import pods as podutil
from blade_operator.status.conditions import Condition
from blade_operator.status.deduplication import round_total
from blade_operator.status.inputs import StatusInputs
from blade_protocol.state import SpeculationCounts

KIND: Final = "SpeculationEffective"
ENOUGH: Final = 1000
"""Draft tokens after which their acceptance says something."""
LOW: Final = Decimal("0.1")
"""Acceptance below which drafts bring little; it has to be twice as much before that is taken back."""
_STEP: Final = Decimal("0.1")


def speculation(inputs: StatusInputs) -> dict[str, Any] | None:
    """``status.speculation``: the current engines together. The last one stays while one of them does not respond, and
    the acceptance in it until it has changed by 0.1."""
    if inputs.service is None:
        return inputs.last_status.get("speculation")
    if inputs.service.spec.engine.speculative is None:
        return None
    before = _before(inputs)
    counts = _counts(inputs)
    if counts is None:
        return before
    found: dict[str, Any] = {"drafted": round_total(sum(each.draft_tokens for each in counts))}
    if (acceptance := _acceptance(counts)) is not None:
        written = _written(before)
        near = written is not None and abs(written - acceptance) < _STEP
        found["acceptance"] = str(written if near else acceptance.quantize(_STEP))
    return found


def speculation_effective(inputs: StatusInputs) -> list[Condition]:
    """Whether drafts bring tokens; no condition without speculative decoding, nor before enough drafts."""
    before = inputs.last_condition(KIND)
    kept = [Condition(KIND, before["status"], before["reason"], before.get("message", ""))] if before else []
    if inputs.service is None:
        return kept
    if inputs.service.spec.engine.speculative is None:
        return []
    states = [(pod, inputs.engines.get(pod["metadata"]["name"])) for pod in inputs.current_pods]
    failed = [pod for pod, state in states if state is not None and state.speculation and state.speculation.failed]
    if failed:
        where = failed[0]["metadata"]["name"] + (f" (and {len(failed) - 1} more)" if len(failed) > 1 else "")
        message = (
            f"pod {where}: the draft model computed NaN, decoding goes on without drafts: choose "
            "another spec.engine.speculative.draftModel, or --draft.dtype float32 in spec.engine.extraArgs"
        )
        return [Condition(KIND, "False", "DraftModelFailed", message)]
    if not _is_same_revision(inputs):
        kept = []
    if (counts := _counts(inputs)) is None:
        return kept
    if (acceptance := _acceptance(counts)) is None:
        return kept if before.get("reason") != "DraftModelFailed" else []
    low = before.get("reason") == "LowAcceptance"
    if acceptance < (2 * LOW if low else LOW):
        message = (
            "the model accepts less than one in ten draft tokens, which makes little faster: take a draft model of the "
            "same family, or remove spec.engine.speculative"
        )
        return [Condition(KIND, "False", "LowAcceptance", message)]
    return [Condition(KIND, "True", "Accepted", "draft tokens are accepted: status.speculation")]


def _counts(inputs: StatusInputs) -> list[SpeculationCounts] | None:
    """What the ready engines of the current revision have counted; None unless each responds."""
    ready = [pod["metadata"]["name"] for pod in inputs.current_pods if podutil.is_ready(pod)]
    states = [inputs.engines.get(name) for name in ready]
    counts = [state.speculation for state in states if state is not None and state.speculation is not None]
    return counts if counts and len(counts) == len(ready) else None


def _acceptance(counts: Sequence[SpeculationCounts]) -> Decimal | None:
    """The share of draft tokens that were accepted; None while there were too few."""
    drafted = sum(each.draft_tokens for each in counts)
    if drafted < ENOUGH:
        return None
    return Decimal(sum(each.accepted_tokens for each in counts)) / drafted


def _before(inputs: StatusInputs) -> dict[str, Any] | None:
    """What was written last, of the same revision."""
    return inputs.last_status.get("speculation") if _is_same_revision(inputs) else None


def _is_same_revision(inputs: StatusInputs) -> bool:
    return bool((inputs.last_status.get("revision") or {}).get("current") == inputs.current)


def _written(before: dict[str, Any] | None) -> Decimal | None:
    """The acceptance that was written last; None where that is no number: users can edit a status, too."""
    try:
        return Decimal((before or {})["acceptance"])
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return None
