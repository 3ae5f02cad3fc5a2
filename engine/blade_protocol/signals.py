"""What a router tells an autoscaler: ``GET /internal/signals``.

Counters only grow while the process lives (``started`` says since when); rates and percentiles are of the last minute.
"""

import msgspec


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of the last minute, in seconds; 0 when nothing was measured."""

    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


class ServiceSignals(msgspec.Struct, frozen=True, kw_only=True):
    """One service behind the router."""

    service: str
    endpoints: int = 0
    usable: int = 0
    """Endpoints that are healthy, not ejected and not draining."""
    running: int = 0
    """Requests its engines have from this router."""
    capacity: int = 0
    """Requests its engines may have; 0: no limit is configured, or no engine is there."""
    saturation: float | None = None
    """1: as much as it should have. ``running`` by ``capacity``; without a capacity the mean of what the engines tell,
    the worse of requests that wait inside by 5 and KV cache in use by 0.8. None when nobody can tell."""
    queued_requests: int = 0
    queued_tokens: int = 0
    """Prompts and the answers they ask for."""
    queued_bytes: int = 0
    queue_oldest_seconds: float = 0.0
    queue_p95_seconds: float = 0.0
    """The age that 95 % of the queued requests have not reached."""
    held_requests: int = 0
    """Requests that wait because no engine is ready."""
    held_oldest_seconds: float = 0.0
    held_arrivals: int = 0
    """Counter: requests that found no engine ready and were held."""


class RouterSignals(msgspec.Struct, frozen=True, kw_only=True):
    """All of a router process."""

    started: float
    """Unix time of its start."""
    time: float
    """Unix time of these numbers."""
    in_flight: int = 0
    """Requests under way, those that wait included."""
    arrivals: int = 0
    """Counter: requests that came."""
    arrivals_per_second: float = 0.0
    finished: int = 0
    """Counter: requests that ended, however."""
    failed: int = 0
    """Counter: those that ended with a 5xx."""
    prompt_tokens: int = 0
    """Counter."""
    cached_tokens: int = 0
    """Counter: prompt tokens that came from an engine's prompt cache."""
    completion_tokens: int = 0
    """Counter."""
    prefix_hit_ratio: float | None = None
    """Cached by prompt tokens of the last minute, where engines say it; None when none did."""
    ttft_seconds: Percentiles = Percentiles()
    """From a request to the first byte of its streamed answer, time in the queue included."""
    tpot_seconds: Percentiles = Percentiles()
    """Per token after the first one, of streams that tell their usage."""
    e2e_seconds: Percentiles = Percentiles()
    """From a request to the last byte of its answer, time in the queue included; successful ones."""
    drain_seconds: float | None = None
    """How long what is under way will take if nothing more comes, at the rate of the last ten seconds; None when
    nothing ended in them."""
    retries: int = 0
    """Counter."""
    retries_refused: int = 0
    """Counter: retries there was no budget for."""
    refused: dict[str, int] = {}
    """Counter: requests the router refused, by the error's ``code``."""
    services: tuple[ServiceSignals, ...] = ()
