"""The judgement of a canary: a new revision beside the one it is to replace, by what routers have counted of both.

Errors, TTFT, TPOT, the time of unary responses, their lengths and their finish reasons are compared. A difference
counts when it is beyond any doubt *and* matters: evidence for it passes a threshold that keeps the promised share of
false alarms, and it is above a tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from blade_operator.analysis.evidence import log_higher_mean, log_more_often, log_other_distribution
from blade_protocol.signals import Differences, RevisionSignals

FALSE_ABORTS: Final = 0.005
"""Share of canaries without any difference that may be aborted, all comparisons at all steps together."""
COMPARISONS: Final = 6
_LEAST_ANSWERS: Final = 50
"""Responses of the new revision before the shares of their lengths and finish reasons say anything."""


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Differences up to which a new revision is as good as the one before."""

    errors: float = 0.01
    """Of the shares of requests that fail."""
    latency: float = 1.15
    """Times as slow."""
    answers: float = 0.2
    """Of the distributions of lengths and finish reasons: the share of responses that would have to be others (the
    total variation distance). 1: they may differ in any way."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a comparison came to."""

    requests: int
    """Those of the new revision."""
    bad: tuple[str, ...] = ()
    """What is worse, each with its numbers; empty: nothing, so far."""


def judge(
    new: RevisionSignals, old: RevisionSignals, tolerances: Tolerances, steps: int, *, shadowed: bool = False
) -> Judgement:
    """Compare what both met in the same time, at one of ``steps`` steps.

    ``shadowed``: copies of requests are compared before the first step, which is one occasion more to err.
    """
    overall = math.log(COMPARISONS / FALSE_ABORTS)
    # Counts begin anew at each step, and so does the evidence; that of latencies only with the first request.
    threshold = overall + math.log(max(1, steps + shadowed))
    overall += math.log(1 + shadowed)
    found = [
        _errors(new, old, tolerances.errors, threshold),
        _latency("TTFT", new.ttft, tolerances.latency, overall),
        _latency("TPOT", new.tpot, tolerances.latency, overall),
        _latency("time of a unary response", new.unary, tolerances.latency, overall),
        _answers("lengths", _by_length(new), _by_length(old), tolerances.answers, threshold),
        _answers("finish reasons", new.finish_reasons, old.finish_reasons, tolerances.answers, threshold),
    ]
    return Judgement(new.requests, tuple(text for text in found if text))


def _errors(new: RevisionSignals, old: RevisionSignals, tolerance: float, threshold: float) -> str:
    if not new.requests or not old.requests:
        return ""
    rates = new.errors / new.requests, old.errors / old.requests
    share = new.requests / (new.requests + old.requests)
    if rates[0] - rates[1] <= tolerance or not log_more_often(new.errors, old.errors, share) >= threshold:
        return ""
    return (
        f"{new.errors} of {new.requests} requests failed ({rates[0]:.1%}), "
        f"of revision {old.revision} {old.errors} of {old.requests} ({rates[1]:.1%})"
    )


def _latency(what: str, found: Differences, tolerance: float, threshold: float) -> str:
    if not log_higher_mean(found.batches, found.total, found.squares, math.log(tolerance)) >= threshold:
        return ""
    return f"{what} is {math.exp(found.total / found.batches):.2f} times as long, over {found.batches} batches"


def _answers(what: str, new: Mapping[str, int], old: Mapping[str, int], tolerance: float, threshold: float) -> str:
    totals = sum(new.values()), sum(old.values())
    if totals[0] < _LEAST_ANSWERS or totals[1] < _LEAST_ANSWERS:
        return ""
    moved = {name: new.get(name, 0) / totals[0] - old.get(name, 0) / totals[1] for name in new.keys() | old.keys()}
    distance = sum(map(abs, moved.values())) / 2
    if distance <= tolerance or not log_other_distribution(new, old) >= threshold:
        return ""
    name = max(sorted(moved), key=lambda each: abs(moved[each]))
    shares = new.get(name, 0) / totals[0], old.get(name, 0) / totals[1]
    return f"{what} of {distance:.0%} of the responses differ: {shares[0]:.0%} are {name}, before {shares[1]:.0%}"


def _by_length(found: RevisionSignals) -> dict[str, int]:
    """Responses by their length in tokens."""
    bounds = [4 ** (place + 1) for place in range(len(found.lengths))]
    names = [f"below {bound} tokens" for bound in bounds[:-1]] + [f"longer than {bounds[-2]} tokens"] if bounds else []
    return {name: count for name, count in zip(names, found.lengths, strict=True) if count}
