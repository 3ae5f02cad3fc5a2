"""What engines did in the last minute, from counters in their load reports."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from blade_router.endpoints.endpoint import Endpoint

INTERVAL = 5.0
"""Seconds between two notes of the counters."""
NOTES = 13
"""Twelve intervals are a minute."""


class Counters(NamedTuple):
    """The counters of one engine at one moment."""

    time: float
    """Monotonic."""
    epoch: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    draft_tokens: int
    accepted_tokens: int


class EngineRates:
    """Notes the counters now and then; the change since then is a rate."""

    def __init__(self) -> None:
        self._notes: dict[Endpoint, deque[Counters]] = {}
        self._noted_at = float("-inf")

    def note(self, endpoints: Iterable[Endpoint], now: float) -> None:
        """Note the counters of these endpoints, unless that was done a moment ago; forget others."""
        if now - self._noted_at < INTERVAL:
            return
        self._noted_at = now
        notes: dict[Endpoint, deque[Counters]] = {}
        for endpoint in endpoints:
            counters = counters_of(endpoint)
            if counters is None:
                continue
            found = self._notes.get(endpoint)
            if found is None or found[-1].epoch != counters.epoch:
                found = deque(maxlen=NOTES)
            found.append(counters)
            notes[endpoint] = found
        self._notes = notes

    def tokens_per_second(self, endpoint: Endpoint) -> float | None:
        """Tokens generated a second, over the last five to ten."""
        passed = self._passed(endpoint, -2)
        if passed is None or passed.time <= 0.0:
            return None
        return round(max(0, passed.generated_tokens) / passed.time, 1)

    def prefix_hit(self, endpoint: Endpoint) -> float | None:
        """Cached by prompt tokens."""
        passed = self._passed(endpoint, 0)
        return _share(passed.cached_tokens, passed.prompt_tokens) if passed is not None else None

    def acceptance(self, endpoints: Iterable[Endpoint]) -> float | None:
        """Accepted by draft tokens, of these endpoints together."""
        drafts = accepted = 0
        for endpoint in endpoints:
            if (passed := self._passed(endpoint, 0)) is not None:
                drafts += passed.draft_tokens
                accepted += passed.accepted_tokens
        return _share(accepted, drafts)

    def _passed(self, endpoint: Endpoint, note: int) -> Counters | None:
        """The change since that note, or the first; None when nothing is known."""
        notes, now = self._notes.get(endpoint), counters_of(endpoint)
        if not notes or now is None or notes[-1].epoch != now.epoch:
            return None
        then = notes[max(note, -len(notes))]
        changes = (after - before for after, before in zip(now[2:], then[2:], strict=True))
        return Counters(now.time - then.time, now.epoch, *changes)


def counters_of(endpoint: Endpoint) -> Counters | None:
    """Those of its last report; None where it reports none."""
    state = endpoint.report.state
    if state is None:
        return None
    drafts = state.speculation
    return Counters(
        endpoint.report.reported_at,
        state.epoch,
        state.prompt_tokens_total,
        state.cached_tokens_total,
        state.generation_tokens_total,
        drafts.draft_tokens if drafts is not None else 0,
        drafts.accepted_tokens if drafts is not None else 0,
    )


def _share(part: int, whole: int) -> float | None:
    return round(min(1.0, max(0, part) / whole), 4) if whole > 0 else None
