"""The parts of all processes put together: samples by second, requests by id, and what of them is new."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from blade_router.ui.parts import Known, Part
from blade_router.ui.sampler import KEPT, Sample, merge
from blade_router.ui.state import RequestRow

MAX_ROWS = 2000
"""Requests that are kept, those in flight included."""
NOT_RECORDED = "not_recorded"
"""The error of a request of which it is not known how it ended: others that ended in the same second were shown."""


class Board:
    """What is known; ``update`` it each second."""

    def __init__(self) -> None:
        self.samples: dict[int, Sample] = {}
        """By second, the newest last."""
        self.rows: dict[str, RequestRow] = {}
        """By id, in the order in which they became known."""
        self.new_samples: list[Sample] = []
        """Of the last update; so is what follows."""
        self.new_rows: list[RequestRow] = []
        self.in_flight: Counter[str] = Counter()
        """Requests on endpoints, of all processes."""
        self.tokens: dict[str, float] = {}
        """Completion tokens of keys, of all samples."""
        self._by_key: dict[str | None, list[RequestRow]] | None = None
        self._known: dict[str, Known] = {}
        self._open: dict[str, dict[str, float]] = {}
        """By process, the ids of requests that were in flight in its last part, and when each began."""

    def known(self, place: str) -> Known:
        """What it has of the process at ``place``."""
        return self._known.get(place, Known())

    def rows_of(self, key: str) -> list[RequestRow]:
        """The requests of one key."""
        if self._by_key is None:
            self._by_key = {}
            for row in self.rows.values():
                self._by_key.setdefault(row.key, []).append(row)
        return self._by_key.get(key, [])

    def update(self, parts: Sequence[tuple[str, Part]]) -> None:
        """Take over the parts of these places; a process that did not respond in time is not among them."""
        self.new_rows = []
        self._by_key = None
        self.in_flight = Counter()
        seconds: dict[int, Sample] = {}
        for place, part in parts:
            before = self._known.get(place)
            if before is not None and before.process != part.process:
                self._close(place, {}, float("-inf"))
            known = part.known
            if before is not None and not part.samples and before.process == part.process:
                known = Known(known.process, known.number, before.second)
            self._known[place] = known
            self.in_flight.update(part.endpoints)
            for sample in part.samples:
                found = seconds.get(sample.time)
                seconds[sample.time] = sample if found is None else merge(found, sample)
            self._take_rows(place, part)
        self._take_samples(seconds)
        while len(self.rows) > MAX_ROWS:
            del self.rows[next(iter(self.rows))]

    def _take_rows(self, place: str, part: Part) -> None:
        for each in part.ended:
            self._take(each)
        in_flight = {self._take(each): each.started for each in part.in_flight}
        oldest = float("-inf") if part.is_all else min(in_flight.values(), default=float("-inf"))
        self._close(place, in_flight, oldest)

    def _take(self, row: RequestRow) -> str:
        """Keep a row; returns its id, which clients choose, so that several requests may have the same."""
        found = self.rows.get(row.id)
        if found is not None and found.started != row.started:
            row = msgspec.structs.replace(row, id=f"{row.id}#{row.started:.4f}")
            found = self.rows.get(row.id)
        if found is None or (found != row and found.status is None):
            self.rows[row.id] = row
            self.new_rows.append(row)
        return row.id

    def _close(self, place: str, in_flight: dict[str, float], oldest: float) -> None:
        """Of what was in flight before, what is not any more has ended."""
        for id, started in self._open.get(place, {}).items():
            row = self.rows.get(id)
            if id in in_flight or row is None or row.status is not None:
                continue
            if started < oldest:
                in_flight[id] = started  # it may still be: only the newest are said
                continue
            row = msgspec.structs.replace(row, status=0, error=NOT_RECORDED)
            self.rows[id] = row
            self.new_rows.append(row)
        self._open[place] = in_flight

    def _take_samples(self, seconds: dict[int, Sample]) -> None:
        last = next(reversed(self.samples), 0)
        for second in sorted(seconds):
            sample = seconds[second]
            for key, (_, _, tokens) in sample.keys.items():
                self.tokens[key] = self.tokens.get(key, 0.0) + tokens
            found = self.samples.get(second)
            if found is not None:
                self.samples[second] = merge(found, sample)
            elif second > last:
                self.samples[second] = sample
        self.new_samples = [sample for second, sample in self.samples.items() if second > last]
        while len(self.samples) > KEPT:
            del self.samples[next(iter(self.samples))]
