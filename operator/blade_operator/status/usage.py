"""How long engines were there and how many tokens they made, over the last hour.

All is in one short text in the status, so that an operator that was restarted goes on where it was: since routers count
for themselves, and engines stay, nothing is lost of the time between. A router that restarts begins to count anew; what
it counted after the last look before that is not known, and left out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from blade_protocol.signals import RouterSignals

WINDOW: Final = 3600.0
"""Seconds that figures are of, at most."""
_APART: Final = 300.0
"""Seconds between two marks, at least."""
_JUMP: Final = 60.0
"""Seconds by which a clock may go back; beyond, all begins anew."""


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """Sums up to a time."""

    at: float
    """Unix time."""
    engine_seconds: float = 0.0
    prompt: int = 0
    """Tokens of prompts, cached ones included."""
    completion: int = 0


class Counters(msgspec.Struct, frozen=True, array_like=True):
    """What a router had counted at the last look."""

    started: float
    prompt: int
    completion: int


class Ledger(msgspec.Struct, frozen=True, array_like=True):
    """What is remembered from one look to the next."""

    marks: tuple[Mark, ...]
    """Oldest first; the first has sums of zero, and the last is that of the last look."""
    engines: int = 0
    """Engines that were there at the last look."""
    routers: dict[str, Counters] = {}
    """By pod name."""

    @property
    def at(self) -> float:
        """Of the last look."""
        return self.marks[-1].at


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used in some time."""

    seconds: float
    engine_seconds: float
    prompt: int
    completion: int

    @property
    def tokens(self) -> int:
        """Of prompts and responses together."""
        return self.prompt + self.completion


@dataclass(frozen=True, slots=True)
class Look:
    """What there is now."""

    at: float
    """Unix time."""
    engines: int
    """Engines that take up machines, ready or not."""
    routers: Collection[str]
    """Names of the routers' pods."""
    signals: Mapping[str, RouterSignals] = field(default_factory=dict)
    """Of those that respond."""


def add(ledger: Ledger | None, look: Look) -> Ledger:
    """``ledger`` after ``look``; one that begins with it where there is none, or the clock went back."""
    sane = {name: each for name, each in look.signals.items() if _is_sane(each)}
    if ledger is None or look.at < ledger.at - _JUMP:
        return Ledger((Mark(look.at),), look.engines, {name: _counters(each) for name, each in sane.items()})
    last = ledger.marks[-1]
    known = {name: each for name, each in ledger.routers.items() if name in look.routers}
    prompt, completion = last.prompt, last.completion
    for name, each in sane.items():
        now, before = _counters(each), known.get(name)
        if before is None or before.started != now.started:
            # One that is older than the ledger had counted what nobody knows the time of.
            first = ledger.marks[0].at
            before = Counters(now.started, 0, 0) if now.started >= first else now
        prompt += max(0, now.prompt - before.prompt)
        completion += max(0, now.completion - before.completion)
        known[name] = now
    at = max(look.at, last.at)
    mark = Mark(at, last.engine_seconds + ledger.engines * (at - last.at), prompt, completion)
    return Ledger(_thinned((*ledger.marks, mark)), look.engines, known)


def used(ledger: Ledger) -> Usage:
    """What was used in the last hour, or since the ledger began; between two marks as much in each second."""
    last = ledger.marks[-1]
    begin = _at(ledger.marks, last.at - WINDOW)
    return Usage(
        seconds=last.at - begin.at,
        engine_seconds=last.engine_seconds - begin.engine_seconds,
        prompt=last.prompt - begin.prompt,
        completion=last.completion - begin.completion,
    )


def dump(ledger: Ledger) -> str:
    """As a text for the status."""
    return msgspec.json.encode(ledger).decode()


def load(text: str) -> Ledger | None:
    """What :func:`dump` wrote; None where it is something else: users can edit a status, too."""
    try:
        found = msgspec.json.decode(text, type=Ledger)
    except (msgspec.DecodeError, RecursionError):
        return None
    numbers = [
        number for mark in found.marks for number in (mark.at, mark.engine_seconds, mark.prompt, mark.completion)
    ]
    sound = all(math.isfinite(number) and number >= 0 for number in numbers) and found.engines >= 0
    ordered = all(_grows(one, other) for one, other in zip(found.marks, found.marks[1:], strict=False))
    return found if found.marks and sound and ordered else None


def _grows(one: Mark, other: Mark) -> bool:
    return (
        one.at <= other.at
        and one.engine_seconds <= other.engine_seconds
        and one.prompt <= other.prompt
        and one.completion <= other.completion
    )


def _at(marks: tuple[Mark, ...], at: float) -> Mark:
    """The sums at a time, interpolated; at the beginning what the first mark has."""
    before = marks[0]
    for mark in marks:
        if mark.at >= at:
            span = mark.at - before.at
            share = (at - before.at) / span if span > 0 and at > before.at else 0.0
            if share <= 0.0:
                return before
            return Mark(
                at,
                before.engine_seconds + share * (mark.engine_seconds - before.engine_seconds),
                before.prompt + int(share * (mark.prompt - before.prompt)),
                before.completion + int(share * (mark.completion - before.completion)),
            )
        before = mark
    return before


def _thinned(marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
    """Without what is not needed: marks close to each other, and those before the window; sums begin at zero."""
    kept = list(marks)
    if len(kept) > 2 and kept[-2].at - kept[-3].at < _APART:
        del kept[-2]
    while len(kept) > 1 and kept[1].at <= kept[-1].at - WINDOW:
        del kept[0]
    first = kept[0]
    return tuple(
        Mark(
            mark.at,
            mark.engine_seconds - first.engine_seconds,
            mark.prompt - first.prompt,
            mark.completion - first.completion,
        )
        for mark in kept
    )


def _counters(signals: RouterSignals) -> Counters:
    return Counters(signals.started, signals.prompt_tokens, signals.completion_tokens)


def _is_sane(signals: RouterSignals) -> bool:
    return math.isfinite(signals.started) and min(signals.prompt_tokens, signals.completion_tokens) >= 0
