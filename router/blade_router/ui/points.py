"""Points of traffic from samples: of everybody, or of one key."""

from collections.abc import Iterable

from blade_router.observability.accounts import OTHER
from blade_router.ui.sampler import KeyCounts, Sample
from blade_router.ui.state import Percentiles, Point, RequestRow

MOST_KEYS = 10
"""Keys whose tokens are counted by themselves; those of others are summed."""
_NOTHING: KeyCounts = (0.0, 0.0, 0.0)


def whole_point(sample: Sample, top: frozenset[str], acceptance: float | None) -> Point:
    """The point of everybody; ``top``: the keys whose tokens are counted by themselves."""
    tokens: dict[str, float] = {}
    for key, (_, _, count) in sample.keys.items():
        if count:
            label = key if key in top else OTHER
            tokens[label] = round(tokens.get(label, 0.0) + count, 3)
    return Point(
        time=sample.time,
        rate=sample.rate,
        in_flight=sample.in_flight,
        queue=sample.queue,
        errors=sample.errors,
        ttft=sample.ttft,
        tpot=sample.tpot,
        prefix_hit=round(min(1.0, sample.cached_tokens / sample.prompt_tokens), 4) if sample.prompt_tokens else None,
        acceptance=acceptance,
        tokens=tokens,
    )


def key_points(samples: Iterable[Sample], key: str, rows: Iterable[RequestRow]) -> list[Point]:
    """The points of one key; ``rows``: its requests, of which the last point has times and shares."""
    found = list(samples)
    if not found:
        return []
    rows, last = list(rows), found[-1].time
    in_flight = [row for row in rows if row.status is None]
    queue = sum(1 for row in in_flight if row.queued is not None and row.chosen is None)
    recent = [row for row in rows if row.end is not None and row.started + row.end > last - 60.0]
    prompt = sum(row.prompt_tokens or 0 for row in recent if row.cached_tokens is not None)
    cached = sum(row.cached_tokens or 0 for row in recent)
    points: list[Point] = []
    for sample in found:
        # a key of that name would see what surplus keys do
        rate, errors, tokens = sample.keys.get(key, _NOTHING) if key != OTHER else _NOTHING
        now = sample.time == last
        points.append(
            Point(
                time=sample.time,
                rate=rate,
                in_flight=len(in_flight) if now else 0,
                queue=queue if now else 0,
                errors=errors,
                ttft=_percentiles([row.first_token for row in recent if row.stream]) if now else None,
                tpot=_percentiles([_tpot(row) for row in recent]) if now else None,
                prefix_hit=round(min(1.0, cached / prompt), 4) if now and prompt else None,
                acceptance=None,
                tokens={key: tokens} if tokens else {},
            )
        )
    return points


def _tpot(row: RequestRow) -> float | None:
    """Seconds per output token after the first."""
    tokens = row.completion_tokens
    if not row.stream or row.first_token is None or row.end is None or tokens is None or tokens < 2:
        return None
    return (row.end - row.first_token) / (tokens - 1)


def _percentiles(durations: Iterable[float | None]) -> Percentiles | None:
    found = sorted(each for each in durations if each is not None)
    if not found:
        return None
    p50, p90, p99 = (round(found[min(len(found) - 1, int(part * len(found)))], 5) for part in (0.5, 0.9, 0.99))
    return p50, p90, p99
