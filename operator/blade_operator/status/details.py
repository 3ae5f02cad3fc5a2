"""Parts of the status that pods and engines report themselves: the table of the check and the measured memory plan."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from blade_operator.model import pods as podutil
from blade_operator.spec.quantity import format_bytes, parse_quantity
from blade_operator.status.deduplication import deduplicate
from blade_operator.status.inputs import StatusInputs
from blade_protocol.state import MemoryPlan

PODS_LIMIT = 16
DETAIL_LIMIT = 400
MIN_RELATIVE_CHANGE = Decimal("0.1")
"""Relative change of a measured number up to which the one already written stays."""
_FIGURES = ("weights", "activations", "kvCache", "kvTokens", "contextLength", "concurrency")


def preflight(inputs: StatusInputs) -> list[dict[str, Any]]:
    """One entry for each pod whose check has ended, failed ones first."""
    before = {
        (entry["pod"], item["name"], item["status"]): item.get("detail", "")
        for entry in inputs.last_status.get("preflight", ())
        for item in entry.get("items", ())
    }
    table = []
    for pod in inputs.machines_of(inputs.engine_pods):
        if (report := podutil.check_report(pod)) is None:
            continue
        items = []
        for item in report.items:
            detail = item.detail[:DETAIL_LIMIT]
            # A check that runs again measures speeds and free memory again.
            written = before.get((pod["metadata"]["name"], item.name, item.status), detail)
            items.append({"name": item.name, "status": item.status, "detail": deduplicate(written, detail)})
        table.append(
            {
                "pod": pod["metadata"]["name"],
                "pass": report.passed,
                "warning": report.warnings,
                "failed": report.failed,
                "items": items,
            }
        )
    return sorted(table, key=lambda entry: (-entry["failed"], -entry["warning"], entry["pod"]))[:PODS_LIMIT]


def memory_plan(inputs: StatusInputs) -> MemoryPlan | None:
    """The memory plan of that engine of the current revision whose KV cache is the smallest, since it is the limit."""
    names = {pod["metadata"]["name"] for pod in inputs.current_pods}
    plans = [state.memory for name, state in inputs.engines.items() if name in names and state.memory]
    return min(plans, key=lambda plan: plan.kv_tokens, default=None)


def fit(inputs: StatusInputs) -> dict[str, Any] | None:
    """``status.fit``. The last one stays while the revision is the same and no number has changed by over 10 %."""
    before = inputs.last_status.get("fit")
    if before and (before.get("revision") != inputs.target or not _is_complete(before)):
        before = None
    plan = memory_plan(inputs)
    if plan is None:
        return before
    measured = {
        "source": "measured",
        "revision": inputs.target,
        **_ranks(inputs),
        "weights": format_bytes(plan.weights),
        "activations": format_bytes(plan.activation_peak),
        **({"graphs": format_bytes(plan.graphs)} if plan.graphs else {}),
        **({"draft": format_bytes(plan.draft)} if plan.draft else {}),
        "kvCache": format_bytes(plan.kv_cache),
        "kvTokens": plan.kv_tokens,
        "contextLength": plan.max_model_len,
        "concurrency": f"{plan.concurrent_at_max_len:.1f}",
    }
    return before if before and _is_similar(before, measured) else measured


def _ranks(inputs: StatusInputs) -> dict[str, int]:
    """How many ranks have as much as the figures say; engines of the current revision have those of the spec."""
    ranks = inputs.service.spec.engine.gpus.ranks if inputs.service else 1
    return {"ranks": ranks} if ranks > 1 else {}


def _is_complete(fit: dict[str, Any]) -> bool:
    """Whether every figure of ``fit`` is there: users can edit a status, too."""
    try:
        return all(parse_quantity(fit[name]) >= 0 for name in _FIGURES)
    except (KeyError, ValueError):
        return False


def _is_similar(before: dict[str, Any], now: dict[str, Any]) -> bool:
    if before["contextLength"] != now["contextLength"]:
        return False
    for name in ("weights", "activations", "kvCache", "kvTokens"):
        old, new = parse_quantity(before[name]), parse_quantity(now[name])
        if abs(new - old) > MIN_RELATIVE_CHANGE * old:
            return False
    return True
