"""What the status says of speculative decoding. It never makes a service unready: without drafts responses are the
same, only later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from blade_operator.model import pods as podutil
from blade_operator.status.condition import Condition
from blade_operator.status.deduplication import round_total
from blade_operator.status.inputs import StatusInputs
from blade_protocol.state import SpeculationCounts

KIND: Final = "SpeculationEffective"
ENOUGH: Final = 1000
"""Draft tokens after which their acceptance says something."""
LOW: Final = Decimal("0.1")
"""Acceptance below which drafts bring little; it has to be twice as much before that is taken back."""
_STEP: Final = Decimal("0.1")
_FAILED: Final[Mapping[str, tuple[str, str]]] = {
    "draft": (
        "the draft model",
        "choose another spec.engine.speculative.draftModel, or --draft.dtype float32 in spec.engine.extraArgs",
    ),
    "eagle3": (
        "the draft head",
        "choose another spec.engine.speculative.draftModel, or spec.engine.dtype float32 for it and the model",
    ),
    "mtp": (
        "the model's multi-token-prediction layers",
        "choose another spec.engine.speculative.method, or spec.engine.dtype float32",
    ),
}
"""By method: what can compute NaN while the model does not, and what to do then."""
_LOW: Final[Mapping[str, str]] = {
    "draft": "take a draft model of the same family",
    "eagle3": "take a draft head that was trained for this very model",
    "mtp": "lower spec.engine.speculative.steps",
    "ngram": "choose another spec.engine.speculative.method",
    "lookahead": "choose another spec.engine.speculative.method",
}
"""By method: what makes drafts better."""


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
    if (speculative := inputs.service.spec.engine.speculative) is None:
        return []
    states = [(pod, inputs.engines.get(pod["metadata"]["name"])) for pod in inputs.current_pods]
    failed = [pod for pod, state in states if state is not None and state.speculation and state.speculation.failed]
    if failed:
        where = failed[0]["metadata"]["name"] + (f" (and {len(failed) - 1} more)" if len(failed) > 1 else "")
        source, instead = _FAILED.get(speculative.method, _FAILED["draft"])
        message = f"pod {where}: {source} computed NaN, decoding goes on without drafts: {instead}"
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
            "the model accepts less than one in ten draft tokens, which makes little faster: "
            f"{_LOW[speculative.method]}, or remove spec.engine.speculative"
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
    return inputs.same_engines


def _written(before: dict[str, Any] | None) -> Decimal | None:
    """The acceptance that was written last; None where that is no number: users can edit a status, too."""
    try:
        return Decimal((before or {})["acceptance"])
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return None
