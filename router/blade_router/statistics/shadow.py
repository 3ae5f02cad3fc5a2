"""Shadow traffic counted: pairs of a copied request's answers, of which both are known."""

from collections import defaultdict
from time import perf_counter
from typing import Final

import msgspec

from blade_protocol.signals import RevisionSignals, ShadowSignals, add_shadows
from blade_router.statistics.answer import Answer
from blade_router.statistics.revisions import Comparison

MAX_SHADOWS: Final = 4
"""Revisions of which signals are merged: workers may differ for a moment, not more."""
_COPIES: Final = 0
_ORIGINALS: Final = 1


class ShadowTotals:
    """All copies since the start of the process, whatever revision they were for."""

    __slots__ = ("requests", "texts")

    def __init__(self) -> None:
        self.requests: defaultdict[str, int] = defaultdict(int)
        """By what came of them: ``sent`` ones, of which some were ``compared``, and the reasons of the others."""
        self.texts: defaultdict[str, int] = defaultdict(int)
        """Pairs of greedy requests by ``same`` and ``different``."""


class ShadowCounts:
    """The copies for one revision."""

    def __init__(self, revision: str, totals: ShadowTotals) -> None:
        self.revision = revision
        self._totals = totals
        self._sent = 0
        self._dropped: defaultdict[str, int] = defaultdict(int)
        self._same = 0
        self._different = 0
        self._comparison = Comparison({"copies": 1.0, "originals": 1.0}, perf_counter())

    def sent(self) -> None:
        """A copy is sent."""
        self._sent += 1
        self._totals.requests["sent"] += 1

    def dropped(self, reason: str) -> None:
        """A copy was not sent, or came to nothing that could be compared."""
        self._dropped[reason] += 1
        self._totals.requests[reason] += 1

    def compared(self, copy: Answer, original: Answer) -> None:
        """Both answers are known."""
        self._totals.requests["compared"] += 1
        for place, answer in ((_COPIES, copy), (_ORIGINALS, original)):
            if answer.failed:
                self._comparison.failed(place)
            else:
                self._comparison.succeeded(
                    place, answer.sent, answer.answered, answer.ended, answer.streamed, answer.tokens, answer.end
                )

    def greedy(self, same: bool) -> None:
        """The texts of a greedy request's answers."""
        if same:
            self._same += 1
        else:
            self._different += 1
        self._totals.texts["same" if same else "different"] += 1

    def signals(self) -> ShadowSignals:
        copies, originals = self._comparison.signals()
        return ShadowSignals(
            revision=self.revision,
            sent=self._sent,
            dropped=dict(self._dropped),
            copies=_named(copies, self.revision),
            originals=_named(originals, ""),
            same=self._same,
            different=self._different,
        )


def _named(found: RevisionSignals, revision: str) -> RevisionSignals:
    return msgspec.structs.replace(found, revision=revision, weight=0.0)


def merge_shadows(one: tuple[ShadowSignals, ...], other: tuple[ShadowSignals, ...]) -> tuple[ShadowSignals, ...]:
    """What two processes counted together, by revision."""
    found = {each.revision: each for each in one}
    for each in other:
        known = found.get(each.revision)
        found[each.revision] = each if known is None else add_shadows(known, each)
    return tuple(found[name] for name in sorted(found))[:MAX_SHADOWS]
