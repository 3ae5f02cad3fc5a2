"""The parts of a status that pods and engines report of themselves: the check's table and the measured memory."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from blade_operator import pods as read
from blade_operator.spec.quantity import format_bytes, parse_quantity
from blade_operator.status.situation import Situation
from blade_operator.status.steady import steady
from blade_protocol.state import MemoryPlan

PODS_LIMIT = 16
DETAIL_LIMIT = 400
CHANGE_WORTH_TELLING = Decimal("0.1")
"""Relative change of a measured number below which the one already written stays."""


_FIGURES = ("weights", "activations", "kvCache", "kvTokens", "contextLength", "concurrency")


def preflight(situation: Situation) -> list[dict[str, Any]]:
    """One entry a pod whose check has ended, failed ones first."""
    before = {
        (entry["pod"], item["name"], item["status"]): item.get("detail", "")
        for entry in situation.before.get("preflight", ())
        for item in entry.get("items", ())
    }
    table = []
    for pod in situation.engine_pods:
        if (report := read.check_report(pod)) is None:
            continue
        items = []
        for item in report.items:
            detail = item.detail[:DETAIL_LIMIT]
            # A check that is run again measures speeds and free memory anew.
            told = before.get((pod["metadata"]["name"], item.name, item.status), detail)
            items.append({"name": item.name, "status": item.status, "detail": steady(told, detail)})
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


def memory_plan(situation: Situation) -> MemoryPlan | None:
    """What the engines of the current revision measured: the one with the smallest KV cache, as it is the limit."""
    names = {pod["metadata"]["name"] for pod in situation.current_pods}
    plans = [state.memory for name, state in situation.engines.items() if name in names and state.memory]
    return min(plans, key=lambda plan: plan.kv_tokens, default=None)


def fit(situation: Situation) -> dict[str, Any] | None:
    """``status.fit``. The one written before stays while the revision is the same and no number moved by over 10 %."""
    before = situation.before.get("fit")
    if before and (before.get("revision") != situation.current or not _is_whole(before)):
        before = None
    plan = memory_plan(situation)
    if plan is None:
        return before
    measured = {
        "source": "measured",
        "revision": situation.current,
        "weights": format_bytes(plan.weights),
        "activations": format_bytes(plan.activation_peak),
        **({"graphs": format_bytes(plan.graphs)} if plan.graphs else {}),
        "kvCache": format_bytes(plan.kv_cache),
        "kvTokens": plan.kv_tokens,
        "contextLength": plan.max_model_len,
        "concurrency": f"{plan.concurrent_at_max_len:.1f}",
    }
    return before if before and _same(before, measured) else measured


def _is_whole(fit: dict[str, Any]) -> bool:
    """Whether every figure of it is there: people can edit a status too."""
    try:
        return all(parse_quantity(fit[name]) >= 0 for name in _FIGURES)
    except (KeyError, ValueError):
        return False


def _same(before: dict[str, Any], now: dict[str, Any]) -> bool:
    if before["contextLength"] != now["contextLength"]:
        return False
    for name in ("weights", "activations", "kvCache", "kvTokens"):
        old, new = parse_quantity(before[name]), parse_quantity(now[name])
        if abs(new - old) > CHANGE_WORTH_TELLING * old:
            return False
    return True
