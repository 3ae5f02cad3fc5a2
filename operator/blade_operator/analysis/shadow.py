"""The judgement of shadow traffic: copies of requests that a new revision answered, beside the originals.

By the same tests as a canary's. Whether texts are the same is reported, and judges nothing: another model has others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import msgspec

from blade_operator.analysis.compare import Tolerances, judge
from blade_protocol.signals import ShadowSignals, add_shadows

_LEAST_TEXTS: Final = 10
"""Greedy requests before the share of equal texts says anything."""


@dataclass(frozen=True, slots=True)
class ShadowJudgement:
    """What the comparison of a shadow came to."""

    compared: int
    """Copies whose answers were compared."""
    bad: tuple[str, ...] = ()
    """What is worse, each with its numbers."""
    same: int = 0
    """Greedy requests with the same text."""
    different: int = 0
    dropped: tuple[tuple[str, int], ...] = ()
    """Copies that could not be compared, by reason, the most frequent one first."""
    reported: bool = True
    """Some router sends copies."""

    def progress(self, least: int) -> str:
        """How far it is from ``least`` copies, in words that seldom change: each change is a write."""
        if not self.reported:
            return (
                "no router reports copies; one that does not respond, or of an image without shadow traffic, sends none"
            )
        part = max(1, least // 10)
        text = f"{min(least, self.compared // part * part)} of {least} copies are compared"
        if self.compared < part and self.dropped:
            return f"{text}; what is not copied, or compared: {self.dropped[0][0]}"
        if (texts := self.same + self.different) >= _LEAST_TEXTS:
            return f"{text}; of greedy requests about {round(10 * self.same / texts) * 10} % have the same text"
        return text

    def result(self) -> str:
        """The numbers."""
        text = f"{self.compared} copies were compared"
        texts = self.same + self.different
        return f"{text}; {self.same} of {texts} greedy requests have the same text" if texts else text


def judge_shadow(found: Sequence[ShadowSignals], stable: str, tolerances: Tolerances, steps: int) -> ShadowJudgement:
    """Judge what the routers report, before the first of ``steps`` steps.

    Args:
        found: of each router that sends copies to the new revision.
        stable: the revision that answers the originals.
    """
    if not found:
        return ShadowJudgement(0, reported=False)
    all_routers = reduce(add_shadows, found)
    originals = msgspec.structs.replace(all_routers.originals, revision=stable)
    judgement = judge(all_routers.copies, originals, tolerances, steps, shadowed=True)
    dropped = Counter(all_routers.dropped).most_common()
    return ShadowJudgement(judgement.requests, judgement.bad, all_routers.same, all_routers.different, tuple(dropped))
