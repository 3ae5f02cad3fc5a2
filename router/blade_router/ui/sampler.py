"""Samples of this process's traffic, one a second, of which the last five minutes are kept.

They are taken whether somebody looks or not: a page that is opened shows what was before. They can be added over the
workers of a router.
"""

import time
from collections import deque
from collections.abc import Sequence
from itertools import islice

import msgspec

from blade_router.observability.metrics import Metrics
from blade_router.observability.recent_requests import RecentRequests
from blade_router.statistics.distribution import Distribution
from blade_router.ui.state import Percentiles

KEPT = 300
"""Samples."""
MAX_COUNTED = 4096
"""Requests in flight whose tokens are counted before they end."""
WINDOW = 60.0
"""Seconds that shares are of."""

KeyCounts = tuple[float, float, float]
"""Of one key, a second: requests that ended, errors among them, completion tokens."""


class Sample(msgspec.Struct, frozen=True):
    """The traffic of one second."""

    time: int
    """Seconds since 1970 at its end."""
    rate: float
    errors: float
    in_flight: int
    queue: int
    ttft: Percentiles | None
    tpot: Percentiles | None
    prompt_tokens: int
    """Of the last minute, where the engine says how many were cached."""
    cached_tokens: int
    keys: dict[str, KeyCounts]
    """Of those that did anything."""


class Sampler:
    """Takes samples of ``metrics`` and of the requests in flight."""

    def __init__(self, metrics: Metrics, recent: RecentRequests) -> None:
        self.samples: deque[Sample] = deque(maxlen=KEPT)
        """The newest last."""
        self._metrics = metrics
        self._recent = recent
        self._at = time.perf_counter()
        self._arrivals = metrics.arrivals
        self._keys = self._count_keys()

    def sample(self, now: float) -> None:
        """Take the sample of the second that has just ended, unless it has been; ``now``: seconds since 1970."""
        second = int(now)
        if self.samples and second <= self.samples[-1].time:
            return
        at = time.perf_counter()
        seconds = max(at - self._at, 1e-3)
        metrics = self._metrics
        passed = metrics.window(WINDOW)
        keys = self._count_keys()
        changed = {
            key: _rates(counts, before, seconds)
            for key, counts in keys.items()
            if counts != (before := self._keys.get(key, (0.0, 0.0, 0.0)))
        }
        self.samples.append(
            Sample(
                time=second,
                rate=round((metrics.arrivals - self._arrivals) / seconds, 3),
                errors=round(sum(errors for _, errors, _ in changed.values()), 3),
                in_flight=metrics.in_flight,
                queue=self._queued(),
                ttft=percentiles(metrics.ttft),
                tpot=percentiles(metrics.tpot),
                prompt_tokens=passed.prompt_tokens,
                cached_tokens=passed.cached_tokens,
                keys=changed,
            )
        )
        self._at, self._arrivals, self._keys = at, metrics.arrivals, keys

    def since(self, second: int) -> Sequence[Sample]:
        """The samples after that second."""
        newer = 0
        for each in reversed(self.samples):
            if each.time <= second:
                break
            newer += 1
        return list(islice(self.samples, len(self.samples) - newer, None))

    def _queued(self) -> int:
        request_queues = self._metrics.request_queues
        return request_queues.pending.count() + sum(
            queue.state().requests for queue in request_queues.queues.values() if queue.enabled
        )

    def _count_keys(self) -> dict[str, KeyCounts]:
        """What each key has used so far, the tokens of streams in flight included."""
        found: dict[str, KeyCounts] = {}
        accounts = self._metrics.accounts
        for (key, _), account in accounts.all.items():
            ended, errors, tokens = found.get(key, (0.0, 0.0, 0.0))
            for status, count in account.requests.items():
                ended += count
                if status >= 500 or status == 429:
                    errors += count
            found[key] = ended, errors, tokens + account.completion_tokens
        for request in islice(reversed(self._recent.in_flight), MAX_COUNTED):
            if request.events:
                key = accounts.key_label(request.key)  # there are more keys than every sample could have
                ended, errors, tokens = found.get(key, (0.0, 0.0, 0.0))
                found[key] = ended, errors, tokens + request.events
        return found


def percentiles(durations: Distribution) -> Percentiles | None:
    """Those of the last minute; None where nothing was counted in it."""
    p50, p90, p99 = durations.percentiles(0.5, 0.9, 0.99)
    return (p50, p90, p99) if p99 else None


def _rates(counts: KeyCounts, before: KeyCounts, seconds: float) -> KeyCounts:
    """Changes a second. A stream that broke has fewer tokens in the end than it seemed to have."""
    ended, errors, tokens = (round(max(0.0, now - then) / seconds, 3) for now, then in zip(counts, before, strict=True))
    return ended, errors, tokens


def merge(one: Sample, other: Sample) -> Sample:
    """The sample of two processes in the same second: counts are summed, of percentiles the worst counts."""
    keys = dict(one.keys)
    for key, counts in other.keys.items():
        ended, errors, tokens = keys.get(key, (0.0, 0.0, 0.0))
        keys[key] = ended + counts[0], errors + counts[1], tokens + counts[2]
    return Sample(
        time=one.time,
        rate=one.rate + other.rate,
        errors=one.errors + other.errors,
        in_flight=one.in_flight + other.in_flight,
        queue=one.queue + other.queue,
        ttft=_worst(one.ttft, other.ttft),
        tpot=_worst(one.tpot, other.tpot),
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        cached_tokens=one.cached_tokens + other.cached_tokens,
        keys=keys,
    )


def _worst(one: Percentiles | None, other: Percentiles | None) -> Percentiles | None:
    if one is None or other is None:
        return one or other
    return max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2])
