"""What streams of text notice of pictures, and what a second question about one costs."""

from __future__ import annotations

import statistics
import sys
import time

from benchmarks.engine.images.asking import BEFORE, add, step, words
from benchmarks.engine.images.model import picture, prompt_of, tokens_of
from benchmarks.figures import QUICK, Figure
from blade_llm.engine.core import EngineCore

STREAMS = 4
CALM = 50 if QUICK else 100
"""Steps without pictures, before and again after those of a round."""
ROUNDS = 2 if QUICK else 4
PICTURES = 2 if QUICK else 5
"""Of each round, at once."""
SIDE = 1008 if QUICK else 1988
"""A megapixel; 3.95."""
ALLOWED = 2.0
RECOMPUTED = 16
"""Prompt tokens: a block."""


def stream_figures(core: EngineCore) -> list[Figure]:
    """p99 of the time between tokens of streams while pictures are encoded and their prompts computed, divided by the
    p99 without them. They take turns, so that other programs disturb both alike, and so that streams are as long in
    both."""
    calm, busy = list[float](), list[float]()
    seconds = 0.0
    for number in range(ROUNDS):
        seconds += _round(core, number, calm, busy)
    return [
        Figure("streams_tpot_median_calm", 1e3 * statistics.median(calm), "ms"),
        Figure("streams_tpot_p99_calm", 1e3 * percentile(calm), "ms"),
        Figure("streams_tpot_p99_with_pictures", 1e3 * percentile(busy), "ms"),
        Figure("streams_tpot_median_with_pictures", statistics.median(busy) / statistics.median(calm), "x"),
        Figure("streams_tokens_meanwhile", len(busy), "tokens each"),
        Figure("streams_pictures", ROUNDS * PICTURES, f"of {SIDE} x {SIDE}, {PICTURES} at once"),
        Figure("streams_pictures_took", seconds, "s"),
        Figure("streams_tpot_p99_ratio", percentile(busy) / percentile(calm), "x", "<=", ALLOWED),
    ]


def _round(core: EngineCore, number: int, calm: list[float], busy: list[float]) -> float:
    """New streams, and pictures that come at once; seconds until these are answered."""
    first = 100 * number
    longest = core.info.max_model_len - 200
    streams = {add(core, words(128, first + index), longest) for index in range(STREAMS)}
    waiting = set(streams)
    while waiting:
        waiting -= {output.request_id for output in step(core)}
    calm += _gaps(core, streams, CALM)
    pictures = [picture(SIDE, first + index) for index in range(PICTURES)]
    pending = set[str]()
    last = begin = time.perf_counter()
    for index, image in enumerate(pictures):
        tokens, span = prompt_of(image, BEFORE, words(24, first + index))
        pending.add(add(core, tokens, 1, [(image, span)]))
    while pending:
        outputs = step(core)
        arrived = {output.request_id for output in outputs}
        if any(output.request_id in streams and output.finish_reason for output in outputs):
            raise RuntimeError(f"the streams ended {len(pending)} pictures too early")
        pending -= arrived
        if streams <= arrived:
            now = time.perf_counter()
            busy.append(now - last)
            last = now
    seconds = time.perf_counter() - begin
    calm += _gaps(core, streams, CALM)
    core.abort(sorted(streams))
    while core.has_work:
        step(core)
    return seconds


def cached_figures(core: EngineCore) -> list[Figure]:
    """A question about a picture, then another one about the same."""
    images = core.scheduler.images
    assert images is not None
    recomputed, times, before = list[int](), list[float](), 0
    for number in range(2 if QUICK else 5):
        image = picture(SIDE, 100 + number)
        for turn in range(2):
            tokens, span = prompt_of(image, BEFORE, words(24, 1000 * turn + number))
            encoded, begin = images.counts.images, time.perf_counter()
            cached = _answer(core, add(core, tokens, 1, [(image, span)]))
            times.append(time.perf_counter() - begin)
            if turn:
                recomputed.append(span.end + 1 - cached)
                before += images.counts.images - encoded
    first, second = times[::2], times[1::2]
    return [
        Figure("second_question_image_tokens", tokens_of(image), "tokens"),
        Figure("second_question_recomputed", max(recomputed), "tokens", "<=", RECOMPUTED),
        Figure("second_question_encoder_runs", before, "", "<=", 0),
        Figure("first_question_ttft", statistics.median(first), "s"),
        Figure("second_question_ttft", statistics.median(second), "s"),
    ]


def percentile(values: list[float]) -> float:
    """p99."""
    return sorted(values)[int(0.99 * len(values))]


def _gaps(core: EngineCore, streams: set[str], count: int) -> list[float]:
    """Seconds between tokens of all streams."""
    gaps, last = list[float](), time.perf_counter()
    while len(gaps) < count:
        if streams <= {output.request_id for output in step(core)}:
            now = time.perf_counter()
            gaps.append(now - last)
            last = now
    return gaps


def _answer(core: EngineCore, name: str) -> int:
    """Wait for the end of a request; how many of its prompt's tokens were cached."""
    cached = None
    while core.has_work:
        for output in step(core):
            if output.request_id == name and cached is None:
                cached = output.cached_tokens
    if cached is None:
        print("the engine does not say what was cached", file=sys.stderr)
    return cached or 0
