"""The summary of a run; the structure of ``--output``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from blade_llm.benchmark.client.measurement import Failure, Measurement
from blade_llm.benchmark.load import Load
from blade_llm.benchmark.slo import Objective, well_served
from blade_llm.benchmark.statistics import Distribution, distribution

BUSY: Final = 0.8
"""Share of a core from which the generator itself may be what is measured."""
LATE: Final = 0.02
"""Seconds a request may be sent late before it is worth a warning."""

GROUPED: Final = 1.05
"""Tokens per event from which the difference of ITL and TPOT is explained."""


class ErrorCount(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of one kind."""

    kind: str
    count: int
    example: str


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that kept all objectives."""

    objectives: list[str]
    requests_per_s: float
    share: float
    """Finished requests, failed ones included."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One request, for one's own analysis. Times in seconds; ``at`` from the start of the load."""

    at: float
    ttft: float | None
    tpot: float | None
    e2e: float
    input_tokens: int
    output_tokens: int
    error: str | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One load and what it met. Times in seconds. Only requests that succeeded count for tokens and latencies."""

    settings: dict[str, Any]
    seconds: float
    succeeded: int
    failed: int
    unfinished: int
    """Given up because the run was stopped."""
    empty: int
    """Succeeded without any text."""
    requests_per_s: float
    input_tokens: int
    output_tokens: int
    input_tokens_per_s: float
    output_tokens_per_s: float
    counted_by: str
    """``usage`` (the server), ``events`` (events with text), or ``mixed``."""
    ttft: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    e2e: Distribution | None
    goodput: Goodput | None
    errors: list[ErrorCount]
    generator_cpu: float
    """Share of a core the generator used."""
    lag_p99: float
    """How late requests were sent."""
    notes: list[str]
    requests: list[Record]


def summarize(
    load: Load,
    settings: Mapping[str, Any],
    objectives: Sequence[Objective] = (),
    notes: Sequence[str] = (),
) -> Summary:
    """Summary of what has finished so far."""
    seconds = max(load.seconds, 1e-9)
    good = [request for request in load.finished if request.failure is None]
    lag = distribution(request.lag for request in load.finished)
    cpu = load.cpu_seconds / seconds
    input_tokens, output_tokens = (sum(counts) for counts in (_inputs(good), _outputs(good)))
    empty = sum(not request.events for request in good)
    return Summary(
        settings=dict(settings),
        seconds=seconds,
        succeeded=len(good),
        failed=len(load.finished) - len(good),
        unfinished=load.in_flight,
        empty=empty,
        requests_per_s=len(good) / seconds,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        input_tokens_per_s=input_tokens / seconds,
        output_tokens_per_s=output_tokens / seconds,
        counted_by=_counted_by(good),
        ttft=distribution(request.ttft for request in good if request.ttft is not None),
        tpot=distribution(request.tpot for request in good if request.tpot is not None),
        itl=distribution(gap for request in good for gap in request.gaps),
        e2e=distribution(request.e2e for request in good),
        goodput=_goodput(load, objectives, seconds) if objectives else None,
        errors=_errors(load.finished),
        generator_cpu=cpu,
        lag_p99=lag.p99 if lag else 0.0,
        notes=[*notes, *_warnings(cpu, lag, empty), *_grouping(good)],
        requests=[_record(request, load.started) for request in load.finished],
    )


def _inputs(requests: Sequence[Measurement]) -> list[int]:
    return [request.input_tokens for request in requests]


def _outputs(requests: Sequence[Measurement]) -> list[int]:
    return [request.output_tokens for request in requests]


def _counted_by(good: Sequence[Measurement]) -> str:
    ways = {"usage" if request.counted_by_server else "events" for request in good}
    return ways.pop() if len(ways) == 1 else "mixed" if ways else "usage"


def _goodput(load: Load, objectives: Sequence[Objective], seconds: float) -> Goodput:
    kept = sum(well_served(request, objectives) for request in load.finished)
    return Goodput(
        objectives=[str(objective) for objective in objectives],
        requests_per_s=kept / seconds,
        share=kept / max(1, len(load.finished)),
    )


def _errors(finished: Sequence[Measurement]) -> list[ErrorCount]:
    failures: list[Failure] = [request.failure for request in finished if request.failure is not None]
    examples: dict[str, str] = {}
    for failure in failures:
        examples.setdefault(failure.kind, failure.detail)
    counts = Counter(failure.kind for failure in failures).most_common()
    return [ErrorCount(kind=kind, count=count, example=examples[kind]) for kind, count in counts]


def _warnings(cpu: float, lag: Distribution | None, empty: int) -> list[str]:
    warnings = []
    if cpu > BUSY:
        warnings.append(f"the generator used {cpu:.0%} of a core and may itself be the bottleneck; run several at once")
    if lag is not None and lag.p99 > LATE:
        warnings.append(f"requests were sent late (p99 {lag.p99 * 1000:.0f} ms): the generator had too little CPU")
    if empty:
        warnings.append(f"{empty} answers had no text at all; they have no TTFT")
    return warnings


def _grouping(good: Sequence[Measurement]) -> list[str]:
    events = sum(len(request.events) for request in good)
    tokens = sum(_outputs(good))
    if not events or tokens < events * GROUPED:
        return []
    return [f"an event carries {tokens / events:.2f} tokens on average: ITL is the time between events, TPOT per token"]


def _record(request: Measurement, started: float) -> Record:
    return Record(
        at=request.sent - started,
        ttft=request.ttft,
        tpot=request.tpot,
        e2e=request.e2e,
        input_tokens=request.input_tokens,
        output_tokens=request.output_tokens,
        error=request.failure.kind if request.failure else None,
    )
