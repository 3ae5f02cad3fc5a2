"""A router's signals for an autoscaler: ``GET /internal/signals``.

Counters only grow while the process lives (``started`` says since when); rates and percentiles are of the last minute.
"""

from itertools import zip_longest

import msgspec


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of the last minute, in seconds; 0 when nothing was measured."""

    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


class ServiceSignals(msgspec.Struct, frozen=True, kw_only=True):
    """Signals of one service behind the router."""

    service: str
    endpoints: int = 0
    usable: int = 0
    """Endpoints that are healthy, not ejected and not draining."""
    running: int = 0
    """Requests of this router in flight at its engines."""
    capacity: int = 0
    """Concurrent requests its engines may have; 0: no limit is configured, or there is no engine."""
    saturation: float | None = None
    """1: fully loaded. ``running`` / ``capacity``; without a capacity the mean over the engines of the larger of
    waiting requests / 5 and KV cache usage / 0.8. None when no engine reports."""
    queued_requests: int = 0
    queued_tokens: int = 0
    """Prompt tokens and requested completion tokens."""
    queued_bytes: int = 0
    queue_oldest_seconds: float = 0.0
    queue_p95_seconds: float = 0.0
    """The age that 95 % of the queued requests have not reached."""
    held_requests: int = 0
    """Requests in the pending-request buffer: no engine is ready."""
    held_oldest_seconds: float = 0.0
    held_arrivals: int = 0
    """Counter: requests that found no engine ready and were buffered."""

    @property
    def waiting(self) -> int:
        """Requests that wait, for a place at an engine or for the first engine."""
        return self.queued_requests + self.held_requests


class Differences(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a latency of one revision differs from that of all others, batch by batch of their requests.

    A batch is a second or more with some requests of each revision. Its difference is that of the means of ln(seconds):
    what slows all revisions down at the same time is not in it, and ``exp(total / batches)`` is the mean ratio.
    """

    batches: int = 0
    total: float = 0.0
    """Sum of the batches' differences."""
    squares: float = 0.0
    """Sum of their squares."""


class RevisionSignals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One revision beside others: requests that began since the weights were last changed, and have ended.

    Latencies are those since these revisions have weights at all.

    Requests are counted where they were sent: one that failed on an engine and was answered by another counts for both.
    Those whose client left count nowhere.
    """

    revision: str
    weight: float = 0.0
    """Its weight in the router's configuration."""
    requests: int = 0
    errors: int = 0
    """Those of them with a 5xx (but from an engine that drains), without a response or with one that broke off."""
    ttft: Differences = Differences()
    """Time from sending the request to the first byte of its stream."""
    tpot: Differences = Differences()
    """Time per token after the first, of streams."""
    unary: Differences = Differences()
    """Time of whole unary responses."""
    lengths: tuple[int, ...] = ()
    """Responses by their completion tokens: below 4, 16, 64, 256, 1024, 4096, 16384, and more."""
    finish_reasons: dict[str, int] = {}
    """Responses by ``finish_reason``; those OpenAI has not defined are one, ``other``."""


class ShadowSignals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Shadow traffic: copies of requests that one revision got, since the router began to send them, and the originals.

    Both sides have the pairs of which both ended, and nothing else.
    """

    revision: str
    """Whose engines get the copies."""
    sent: int = 0
    """Copies that were sent."""
    dropped: dict[str, int] = {}
    """Copies that were to be sent and were not, or came to nothing that could be compared, by reason."""
    copies: RevisionSignals = RevisionSignals(revision="")
    originals: RevisionSignals = RevisionSignals(revision="")
    same: int = 0
    """Pairs of greedy requests that have the same text, as far as it was kept."""
    different: int = 0
    """The other ones."""


class RouterSignals(msgspec.Struct, frozen=True, kw_only=True):
    """Signals of a whole router process."""

    started: float
    """Unix time of its start."""
    time: float
    """Unix time of these numbers."""
    in_flight: int = 0
    """Requests in flight, waiting ones included."""
    idle_seconds: float | None = None
    """Seconds since a request was last at an engine or waited for one, or since the start; 0 while one is or does.
    None: the router is too old to say."""
    arrivals: int = 0
    """Counter: requests received."""
    arrivals_per_second: float = 0.0
    finished: int = 0
    """Counter: requests that ended, successful or not."""
    failed: int = 0
    """Counter: those that ended with a 5xx."""
    prompt_tokens: int = 0
    """Counter."""
    cached_tokens: int = 0
    """Counter: prompt tokens that came from an engine's prefix cache."""
    completion_tokens: int = 0
    """Counter."""
    prefix_hit_ratio: float | None = None
    """Cached / prompt tokens of the last minute, of engines that report both; None when none did."""
    ttft_seconds: Percentiles = Percentiles()
    """TTFT: from a request to the first byte of its streamed response, queueing included."""
    tpot_seconds: Percentiles = Percentiles()
    """TPOT: per token after the first one, of streams that report their usage."""
    e2e_seconds: Percentiles = Percentiles()
    """From a request to the last byte of its response, queueing included; successful ones."""
    drain_seconds: float | None = None
    """Estimated time until all requests in flight have ended, at the rate of the last ten seconds; None when none
    ended in them."""
    retries: int = 0
    """Counter."""
    retries_refused: int = 0
    """Counter: retries that the retry budget refused."""
    refused: dict[str, int] = {}
    """Counter: requests the router refused, by the error's ``code``."""
    services: tuple[ServiceSignals, ...] = ()
    revisions: tuple[RevisionSignals, ...] = ()
    """Of the revisions that have weights, at most eight; empty while there are none."""
    shadows: tuple[ShadowSignals, ...] = ()
    """One while copies are sent, else none; workers that have not read the configuration yet may add another."""


def add_revisions(one: RevisionSignals, other: RevisionSignals) -> RevisionSignals:
    """What two processes counted of one revision together."""
    return RevisionSignals(
        revision=one.revision,
        weight=one.weight,
        requests=one.requests + other.requests,
        errors=one.errors + other.errors,
        ttft=_add_differences(one.ttft, other.ttft),
        tpot=_add_differences(one.tpot, other.tpot),
        unary=_add_differences(one.unary, other.unary),
        lengths=tuple(map(sum, zip_longest(one.lengths, other.lengths, fillvalue=0))),
        finish_reasons=_add_counts(one.finish_reasons, other.finish_reasons),
    )


def add_shadows(one: ShadowSignals, other: ShadowSignals) -> ShadowSignals:
    """What two processes counted of the copies for one revision together."""
    return ShadowSignals(
        revision=one.revision,
        sent=one.sent + other.sent,
        dropped=_add_counts(one.dropped, other.dropped),
        copies=add_revisions(one.copies, other.copies),
        originals=add_revisions(one.originals, other.originals),
        same=one.same + other.same,
        different=one.different + other.different,
    )


def _add_counts(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted(one.keys() | other.keys())}


def _add_differences(one: Differences, other: Differences) -> Differences:
    return Differences(
        batches=one.batches + other.batches, total=one.total + other.total, squares=one.squares + other.squares
    )
