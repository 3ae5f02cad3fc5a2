"""Events for what went well again, or came to be in parts: repaired pods, loaded adapters, a revision rolled back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from blade_operator.model.plan import EventRecord

_NAMED: Final = 3
"""Things that an Event names; of more it says how many."""


def events(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[EventRecord]:
    """The Events between two statuses: one for each kind of news, whatever it is about."""
    yield from _rolled_back(before, after)
    yield from _repaired(before, after)
    yield from _loaded(before, after)


def _rolled_back(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[EventRecord]:
    old, new = (status.get("revision") or {} for status in (before, after))
    failed, stable = new.get("failed", ""), new.get("stable", "")
    if failed and stable and failed != old.get("failed", ""):
        yield EventRecord("Warning", "RolledBack", f"revision {failed} did not become ready: {stable} runs instead")


def _repaired(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[EventRecord]:
    """Pods that failed and do so no more: their container runs again, or another pod is in their place."""
    failing = {failure["pod"] for failure in after.get("failures") or ()}
    reasons = {
        failure["pod"]: failure.get("reason") or "it failed"
        for failure in before.get("failures") or ()
        if failure["pod"] and failure["pod"] not in failing
    }
    if reasons:
        pods = [f"{pod} ({reason})" for pod, reason in sorted(reasons.items())]
        yield EventRecord("Normal", "Repaired", f"no longer failing: {_listed(pods)}")


def _loaded(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[EventRecord]:
    """LoRA adapters that have come to be on all engines that are to have them."""
    known = {each["name"] for each in before.get("adapters") or () if _is_everywhere(each)}
    loaded = [each["name"] for each in after.get("adapters") or () if _is_everywhere(each)]
    if new := [name for name in loaded if name not in known]:
        yield EventRecord("Normal", "AdapterLoaded", f"on all engines that are to have it: {_listed(new)}")


def _is_everywhere(adapter: Mapping[str, Any]) -> bool:
    return 0 < adapter["desired"] <= adapter["loaded"] and not adapter.get("reason")


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
