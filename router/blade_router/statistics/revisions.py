"""Revisions side by side: what the requests of each met, so that a new one can be judged by the one it replaces.

Counting begins anew when weights change: between requests of different times a difference says nothing of revisions.
Latencies are compared within a batch of requests of the same seconds, so their differences go on from weights to
weights. All that is kept are a few sums for each of at most ``MAX_REVISIONS``, which can be added over workers and
replicas.
"""

import math
import re
from collections.abc import Mapping
from time import perf_counter
from typing import Final

from blade_protocol.signals import Differences, RevisionSignals, add_revisions
from blade_router.statistics.answer import Answer

MAX_REVISIONS: Final = 8
BATCH_REQUESTS: Final = 8
"""Requests that a batch has of each revision, at least: the mean of so many logarithms is about normal."""
BATCH_SECONDS: Final = 1.0
"""Seconds that it lasts, at least: requests of one moment are alike."""
WARM_UP: Final = 15.0
"""Seconds after a change of the weights in which latencies do not count: new engines' caches are empty."""
LENGTHS: Final = (4, 16, 64, 256, 1024, 4096, 16384)
FINISH_REASONS: Final = frozenset(("stop", "length", "tool_calls", "content_filter", "function_call"))
_TTFT: Final = 0
_TPOT: Final = 1
_UNARY: Final = 2
_SHORTEST: Final = 1e-5
_FINISH: Final = re.compile(rb'"finish_reason"\s*:\s*"([a-z_]{1,32})"')


class _Revision:
    """The counters of one revision."""

    __slots__ = ("errors", "finish_reasons", "lengths", "name", "requests", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.requests = 0
        self.errors = 0
        self.lengths = [0] * (len(LENGTHS) + 1)
        self.finish_reasons: dict[str, int] = {}


class _Batches:
    """Batches of one latency, of which the last is open."""

    __slots__ = ("_began", "_counts", "_sums", "batches", "squares", "totals")

    def __init__(self, revisions: int) -> None:
        self.batches = 0
        self.totals = [0.0] * revisions
        self.squares = [0.0] * revisions
        self._began = 0.0
        self._counts = [0] * revisions
        self._sums = [0.0] * revisions

    def add(self, index: int, seconds: float, now: float) -> None:
        """One request's latency."""
        counts, sums = self._counts, self._sums
        if not any(counts):
            self._began = now
        counts[index] += 1
        sums[index] += math.log(max(seconds, _SHORTEST))
        if counts[index] < BATCH_REQUESTS or now - self._began < BATCH_SECONDS or min(counts) < BATCH_REQUESTS:
            return
        count, total = sum(counts), sum(sums)
        for each in range(len(counts)):
            others = (total - sums[each]) / (count - counts[each])
            difference = sums[each] / counts[each] - others
            self.totals[each] += difference
            self.squares[each] += difference * difference
            counts[each] = 0
            sums[each] = 0.0
        self.batches += 1

    def reopen(self) -> None:
        """Drop what the open batch has: the requests that come now meet other circumstances."""
        for each in range(len(self._counts)):
            self._counts[each] = 0
            self._sums[each] = 0.0

    def differences(self, index: int) -> Differences:
        """Those of one revision."""
        return Differences(batches=self.batches, total=self.totals[index], squares=self.squares[index])


class Comparison:
    """The revisions that have weights, since these were set.

    Args:
        weights: by revision; of more than ``MAX_REVISIONS`` the ones with the largest weights count.
        now: ``time.perf_counter``, as all times here.
        before: with the weights before these, if there were some.
    """

    def __init__(self, weights: Mapping[str, float], now: float, before: "Comparison | None" = None) -> None:
        names = sorted(sorted(weights, key=lambda name: (-weights[name], name))[:MAX_REVISIONS])
        self._revisions = [_Revision(name, weights[name]) for name in names]
        self._places = {name: place for place, name in enumerate(names)}
        self._latencies = [_Batches(len(names)) for _ in (_TTFT, _TPOT, _UNARY)]
        if before is not None and before._places.keys() == self._places.keys():
            self._latencies = before._latencies
            for batches in self._latencies:
                batches.reopen()
        self._warm_at = now + WARM_UP

    def begin(self, revision: str) -> "Attempt | None":
        """A request is sent to an engine of this revision; None where that has no weight."""
        place = self._places.get(revision)
        return None if place is None else Attempt(self, place)

    def signals(self) -> tuple[RevisionSignals, ...]:
        """What was counted, by name of the revision."""
        ttft, tpot, unary = self._latencies
        found = [
            RevisionSignals(
                revision=each.name,
                weight=each.weight,
                requests=each.requests,
                errors=each.errors,
                ttft=ttft.differences(place),
                tpot=tpot.differences(place),
                unary=unary.differences(place),
                lengths=tuple(each.lengths),
                finish_reasons=dict(each.finish_reasons),
            )
            for place, each in enumerate(self._revisions)
        ]
        return tuple(found)

    def failed(self, place: int) -> None:
        """Count an error."""
        revision = self._revisions[place]
        revision.requests += 1
        revision.errors += 1

    def succeeded(
        self, place: int, sent: float, answered: float, now: float, streamed: bool, tokens: int, end: bytes
    ) -> None:
        """Count a response. ``answered``: when its first byte came; ``end``: its last bytes."""
        revision = self._revisions[place]
        revision.requests += 1
        if tokens > 0:
            revision.lengths[_bucket(tokens)] += 1
        if (reason := finish_reason(end)) is not None:
            revision.finish_reasons[reason] = revision.finish_reasons.get(reason, 0) + 1
        if sent < self._warm_at or len(self._revisions) < 2:
            return
        if not streamed:
            self._latencies[_UNARY].add(place, now - sent, now)
            return
        self._latencies[_TTFT].add(place, answered - sent, now)
        if tokens > 1:
            self._latencies[_TPOT].add(place, (now - answered) / (tokens - 1), now)


class Attempt:
    """A request on its way to an engine of one revision. Only its first outcome counts."""

    __slots__ = ("_answered", "_comparison", "_ended", "_place", "_sent", "answer")

    def __init__(self, comparison: Comparison, place: int) -> None:
        self._comparison = comparison
        self._place = place
        self._sent = perf_counter()
        self._answered = 0.0
        self._ended = False
        self.answer: Answer | None = None
        """What is to be compared with that to a copy of the request."""

    def answered(self) -> None:
        """The first byte of a response is here."""
        self._answered = perf_counter()

    def failed(self) -> None:
        """The engine failed."""
        if not self._ended:
            self._ended = True
            self._comparison.failed(self._place)
            if self.answer is not None:
                self.answer.fail()

    def succeeded(self, streamed: bool, tokens: int, end: bytes) -> None:
        """The whole response came. ``tokens``: of the completion, 0 where they are not known."""
        if not self._ended:
            self._ended = True
            now = perf_counter()
            self._comparison.succeeded(self._place, self._sent, self._answered, now, streamed, tokens, end)
            if self.answer is not None:
                self.answer.succeed(self._answered, now, streamed, tokens, end)


def finish_reason(end: bytes) -> str | None:
    """Why a response ended, by its last bytes; None where they do not say so."""
    found = _FINISH.findall(end)
    if not found:
        return None
    reason: str = found[-1].decode("ascii")
    return reason if reason in FINISH_REASONS else "other"


def _bucket(tokens: int) -> int:
    for place, bound in enumerate(LENGTHS):
        if tokens < bound:
            return place
    return len(LENGTHS)


def merge_revisions(
    one: tuple[RevisionSignals, ...], other: tuple[RevisionSignals, ...]
) -> tuple[RevisionSignals, ...]:
    """What two processes counted together. Those that follow other weights are kept apart, the surplus is left out."""
    found = {(each.revision, each.weight): each for each in one}
    for each in other:
        known = found.get((each.revision, each.weight))
        found[each.revision, each.weight] = each if known is None else add_revisions(known, each)
    return tuple(found[key] for key in sorted(found))[: 2 * MAX_REVISIONS]
