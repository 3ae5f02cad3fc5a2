"""When the status of a scaled service says something new, and what.

Numbers that change all the time are written at most once a minute, and only when they have changed enough; a changed
number of engines at once.
"""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Final, Literal

from blade_operator.model.plan import EventRecord
from blade_operator.scaling import serialise
from blade_operator.scaling.autoscaler import KEEP_SECONDS, PUBLISH_SECONDS, Autoscaler, differs, is_significant
from blade_operator.scaling.serialise import Saved

_CHANGES: Final = 5
_MOST_AHEAD: Final = 300.0
"""Seconds by which writes may be ahead of one a minute and still be paid for."""


def is_to_publish(new: Autoscaler, generation: int, was: int, at: float) -> bool:
    """Whether the last decision in ``new`` is to be in its status, which is of before it. ``was``: the engines if the
    status says none."""
    if not new.status or new.generation != generation:
        return True
    if int(new.status.get("replicas", was)) != new.verdict.engines:
        return True
    # A write that came early, of another number of engines, costs nothing; several are paid for by a longer wait.
    wait = max(PUBLISH_SECONDS, new.ahead)
    return is_condition_to_publish(new, at) or (not 0 <= at - new.published_at < wait and _is_worth_a_write(new, at))


def is_condition_to_publish(new: Autoscaler, at: float) -> bool:
    """Whether the condition is to be another one: numbers in the status can wait for the next reconcile."""
    verdict, said = new.verdict.judgement, new.judgement
    return (verdict.status, verdict.reason) != (said.status, said.reason) and (
        not 0 <= at - new.published_at < PUBLISH_SECONDS
    )


def published(new: Autoscaler, mode: str, generation: int, replicas: int, was: int, now: datetime) -> Autoscaler:
    """``new`` with its last decision in its status. ``replicas``: ``spec.replicas``; ``was``: the engines in the former
    status."""
    at, verdict, before = now.timestamp(), new.verdict, new.status
    original = new.saved.replicas if new.saved is not None and new.saved.replicas >= 0 else replicas
    changes = list(before.get("changes", ()))
    if was != verdict.engines:
        stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        changes.append(f"{stamp} {was} -> {verdict.engines}: {verdict.reason}")
    saved = Saved(at, new.memory, original)
    waited = at - new.published_at
    ahead = min(max(0.0, new.ahead + PUBLISH_SECONDS - waited), _MOST_AHEAD) if waited >= 0 else 0.0
    status = {
        "mode": mode,
        "replicas": verdict.engines,
        "needed": verdict.needed,
        "reason": verdict.reason,
        "changes": changes[-_CHANGES:],
        "state": serialise.dump(saved),
    }
    return dataclasses.replace(
        new,
        status=status,
        judgement=verdict.judgement,
        saved=saved,
        published_at=at,
        ahead=ahead,
        generation=generation,
    )


def _is_worth_a_write(new: Autoscaler, at: float) -> bool:
    verdict, saved = new.verdict, new.saved
    if verdict.needed != new.status.get("needed") or differs(str(new.status.get("reason", "")), verdict.reason):
        return True
    if saved is None:
        return True
    if 0 <= at - saved.at < KEEP_SECONDS:
        return False
    before, now = serialise.numbers(saved), serialise.numbers(Saved(at, new.memory))
    return len(before) != len(now) or any(is_significant(*pair) for pair in zip(before, now, strict=True))


def events(before: int, new: Autoscaler, mode: str) -> list[EventRecord]:
    """What is reported when the number of engines in the status has changed from ``before``."""
    now = new.status["replicas"]
    if before == now:
        return []
    direction: Literal["Up", "Down"] = "Up" if now > before else "Down"
    reason = f"Scaled{direction}" if mode != "Advisory" else f"Advises{direction}"
    return [EventRecord("Normal", reason, f"{mode}: {before} -> {now} engines: {new.verdict.reason}")]
