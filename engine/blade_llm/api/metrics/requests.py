"""What API servers measure of requests: latencies, lengths, how they ended.

Each API-server process counts into its own row of the shared stats; the one that is scraped adds the rows up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from blade_llm.api.metrics.catalogue import counter
from blade_llm.api.metrics.histogram import Counters, laid_out
from blade_llm.api.metrics.names import Aliases, Named
from blade_llm.api.metrics.state import StateCollector
from blade_protocol import metrics as names
from blade_protocol.state import EngineState

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS: Final = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
"""Of whole responses: from a few tokens to many minutes."""
_TO_FIRST: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
    *(120, 240),
)
"""Of what passes before the first token: a cached prompt of a small model takes a millisecond, a queue minutes."""
_TOKENS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
GAPS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)
"""Seconds between tokens: the buckets of :attr:`MeasuredChoice.gaps`, but for the infinite one."""
_HISTOGRAMS: Final = laid_out(
    (names.ENGINE_TTFT, _TO_FIRST),
    (names.ENGINE_TPOT, GAPS),
    (names.ENGINE_ITL, GAPS),
    (names.ENGINE_E2E, _SECONDS),
    (names.ENGINE_QUEUE_TIME, _TO_FIRST),
    (names.ENGINE_PREFILL_TIME, _TO_FIRST),
    (names.ENGINE_DECODE_TIME, _SECONDS),
    (names.ENGINE_INFERENCE_TIME, _SECONDS),
    (names.ENGINE_PROMPT_LENGTH, _TOKENS),
    (names.ENGINE_OUTPUT_LENGTH, _TOKENS),
    (names.ENGINE_LONGEST_OUTPUT, _TOKENS),
)
_TTFT, _TPOT, _ITL, _E2E, _QUEUE, _PREFILL, _DECODE, _INFERENCE, _PROMPT, _OUTPUT, _LONGEST = _HISTOGRAMS
_REASONS: Final = {reason: _LONGEST.end + number for number, reason in enumerate(("stop", "length", "abort"))}
_IGNORED: Final = _LONGEST.end + len(_REASONS)
_UNKEPT: Final = _IGNORED + 1
_SPANS: Final = _UNKEPT + 1
_PAYLOADS: Final = _SPANS + 1
_IMAGES: Final = _PAYLOADS + 1
_IMAGE_BYTES: Final = _IMAGES + 1
_IMAGE_SECONDS: Final = _IMAGE_BYTES + 1
NUM_COUNTERS: Final = _IMAGE_SECONDS + 1
"""Numbers that a process counts into."""


class MeasuredChoice(Protocol):
    """One choice of a response, as far as metrics need it."""

    @property
    def finish_reason(self) -> str | None: ...
    @property
    def first_token_at(self) -> float | None: ...
    @property
    def last_token_at(self) -> float: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_replayed(self) -> int: ...
    @property
    def num_prompt(self) -> int: ...
    @property
    def queue_seconds(self) -> float | None: ...
    @property
    def gaps(self) -> Sequence[int]:
        """How many times between two steps with tokens were in which bucket of :data:`GAPS`."""


class MeasuredResult(Protocol):
    """All choices of one HTTP request, as far as metrics need them."""

    @property
    def choices(self) -> Sequence[MeasuredChoice]: ...
    @property
    def samples(self) -> int:
        """Choices for each prompt, one after the other."""

    @property
    def started(self) -> float: ...
    @property
    def finished(self) -> bool: ...


class ServerMetrics:
    """Counts into ``mine`` and renders the sum of all ``rows``; calls ``state`` at every scrape.

    ``model``: the label ``model_name`` of every metric. ``aliases``: whose names are exposed, too.
    """

    def __init__(
        self,
        state: Callable[[], EngineState | None],
        mine: Counters,
        rows: Sequence[Counters],
        model: str = "",
        aliases: Aliases = "none",
    ) -> None:
        self._mine = mine
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        for collector in (StateCollector(state), _RequestCollector(rows)):
            self._registry.register(Named(collector, model, aliases))

    def observe(self, result: MeasuredResult) -> None:
        """Count a finished or abandoned request: each of its prompts once, however many outputs it has."""
        for start in range(0, len(result.choices), result.samples):
            self._observe(result.choices[start : start + result.samples], result.started)
        if result.finished:
            _E2E.observe(self._mine, time.monotonic() - result.started)

    def _observe(self, choices: Sequence[MeasuredChoice], started: float) -> None:
        """Count the outputs for one prompt as one: the first token of all, the mean time between their tokens, and the
        worst reason to end."""
        reasons = {choice.finish_reason or "abort" for choice in choices}
        self._mine[_REASONS[next(reason for reason in ("abort", "length", "stop") if reason in reasons)]] += 1
        begun = [(choice, choice.first_token_at) for choice in choices if choice.first_token_at is not None]
        if not begun:
            return
        first, last = min(at for _, at in begun), max(choice.last_token_at for choice, _ in begun)
        _TTFT.observe(self._mine, first - started)
        self._observe_phases(choices, started, first, last)
        lengths = [choice.num_tokens - choice.num_replayed for choice, _ in begun]
        _PROMPT.observe(self._mine, choices[0].num_prompt)
        _OUTPUT.observe(self._mine, sum(lengths))
        _LONGEST.observe(self._mine, max(lengths))
        times = [choice.last_token_at - at for choice, at in begun]
        for (choice, _), seconds in zip(begun, times, strict=True):
            _ITL.add(self._mine, choice.gaps, seconds)
        later = [(seconds, length - 1) for seconds, length in zip(times, lengths, strict=True) if length > 1]
        if later:
            _TPOT.observe(self._mine, sum(seconds for seconds, _ in later) / sum(gaps for _, gaps in later))

    def _observe_phases(self, choices: Sequence[MeasuredChoice], started: float, first: float, last: float) -> None:
        """Where its time went: waiting for its first step, computing the prompt, and the rest."""
        _DECODE.observe(self._mine, last - first)
        queued = next((choice.queue_seconds for choice in choices if choice.queue_seconds is not None), None)
        if queued is None:
            return
        prefill = max(0.0, first - started - queued)
        _QUEUE.observe(self._mine, queued)
        _PREFILL.observe(self._mine, prefill)
        _INFERENCE.observe(self._mine, prefill + last - first)

    def count_ignored(self, fields: int) -> None:
        """Count fields of a request that nobody knows, or that have no effect."""
        self._mine[_IGNORED] += fields

    def count_unkept(self) -> None:
        """Count a response that was to be kept and is not."""
        self._mine[_UNKEPT] += 1

    def observe_images(self, images: int, size: int, seconds: float) -> None:
        """Count the images of one request: so many, of ``size`` bytes together, fetched and decoded in ``seconds``."""
        self._mine[_IMAGES] += images
        self._mine[_IMAGE_BYTES] += size
        self._mine[_IMAGE_SECONDS] += seconds

    def set_dropped_spans(self, spans: int) -> None:
        """So many spans of this process never reached the collector."""
        self._mine[_SPANS] = spans

    def set_dropped_payloads(self, records: int) -> None:
        """So many records of this process's payload log were dropped."""
        self._mine[_PAYLOADS] = records

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self._registry)


class _RequestCollector(Collector):
    def __init__(self, rows: Sequence[Counters]) -> None:
        self._rows = rows

    def collect(self) -> Iterator[Metric]:
        totals = [sum(column) for column in zip(*self._rows, strict=True)]
        for histogram in _HISTOGRAMS:
            yield histogram.family(totals)
        finished = counter(names.ENGINE_REQUESTS)
        for reason, position in _REASONS.items():
            finished.add_metric([reason], totals[position])
        yield finished
        yield counter(names.ENGINE_IGNORED_FIELDS, totals[_IGNORED])
        yield counter(names.ENGINE_UNKEPT_RESPONSES, totals[_UNKEPT])
        yield counter(names.ENGINE_SPANS_DROPPED, totals[_SPANS])
        yield counter(names.ENGINE_PAYLOADS_DROPPED, totals[_PAYLOADS])
        yield counter(names.ENGINE_IMAGES, totals[_IMAGES])
        yield counter(names.ENGINE_IMAGE_BYTES, totals[_IMAGE_BYTES])
        yield counter(names.ENGINE_IMAGE_SECONDS, totals[_IMAGE_SECONDS])

    def describe(self) -> Iterator[Metric]:
        return iter(())
