"""Before the load: what the server accepts and reports, and how many tokens a text makes with it.

It costs two requests of one token each (a third for a file of conversations).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from blade_llm.benchmark.client.client import Client
from blade_llm.benchmark.client.measurement import Measurement
from blade_llm.benchmark.client.target import Target
from blade_llm.benchmark.errors import BenchmarkError
from blade_llm.benchmark.workload.datasets import Sample
from blade_llm.benchmark.workload.words import COMMON, Counter, ExactWords, PromptMaker, TokenRate

_REFUSED: Final = ("HTTP 400", "HTTP 422")
_SHORT: Final = COMMON[0]
CHARACTERS_PER_TOKEN: Final = 4.0
"""Default for English text."""
_LONGEST_PROBE: Final = 2000
"""Most characters of a calibration prompt."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the load needs to know of the server."""

    target: Target
    """The target, with the options that the server accepts."""
    short: Measurement
    """One word, one token: shows what the server puts around a prompt."""
    notes: Sequence[str]
    """What differs from the options, for the report."""

    @property
    def server_counts(self) -> bool:
        return self.short.counted_by_server


async def calibrate(client: Client, target: Target) -> Calibration:
    """Try the request with every option, then with fewer, until the server accepts it.

    Raises :class:`BenchmarkError` when it takes none, or fails otherwise.
    """
    first: Measurement | None = None
    # The length of responses matters more than their count: events can be counted here.
    for ignore_eos, usage in itertools.product(_less(target.ignore_eos), _less(target.include_usage)):
        tried = replace(target, ignore_eos=ignore_eos, include_usage=usage)
        short = await client.measure(tried, Sample(_SHORT, 1), client.clock())
        if short.failure is None:
            return Calibration(tried, short, _notes(target, tried, short))
        first = first or short
        if short.failure.kind not in _REFUSED:
            break
    assert first is not None
    assert first.failure is not None
    raise BenchmarkError(f"{target.url} does not serve: {first.failure.kind}: {first.failure.detail}")


async def make_prompts(client: Client, found: Calibration, count: Counter | None) -> tuple[PromptMaker, Sequence[str]]:
    """What makes prompts of wanted lengths, and notes; ``count``: the server's tokenizer, when it is known."""
    if count is not None:
        return ExactWords(count, max(0, found.short.input_tokens - count(_SHORT))), ()
    if not found.server_counts:
        return TokenRate(), ("the server tells no token counts: prompt lengths are estimates (--tokenizer DIR helps)",)
    whole = await client.measure(found.target, Sample(" ".join(COMMON), 1), client.clock())
    if whole.failure is not None:
        return TokenRate(), (f"prompt lengths are estimates: calibration failed with {whole.failure.kind}",)
    per_word = max(0.1, (whole.input_tokens - found.short.input_tokens) / (len(COMMON) - 1))
    return TokenRate(max(0.0, found.short.input_tokens - per_word), per_word), ()


async def count_like(client: Client, found: Calibration, texts: Sequence[str]) -> Counter:
    """Counts tokens by characters, by as many per token as the server needs for the first ``texts``."""
    per_token = CHARACTERS_PER_TOKEN
    text = " ".join(texts[:20])[:_LONGEST_PROBE]
    if found.server_counts and text:
        probe = await client.measure(found.target, Sample(text, 1), client.clock())
        tokens = probe.input_tokens - found.short.input_tokens
        if probe.failure is None and tokens > 0:
            per_token = len(text) / tokens
    return lambda other: round(len(other) / per_token)


def _less(wanted: bool) -> tuple[bool, ...]:
    return (True, False) if wanted else (False,)


def _notes(requested: Target, accepted: Target, short: Measurement) -> list[str]:
    notes = []
    if requested.ignore_eos and not accepted.ignore_eos:
        notes.append("the server refuses ignore_eos: answers may end before the length asked for")
    if requested.include_usage and not accepted.include_usage:
        notes.append("the server refuses stream_options")
    if not short.counted_by_server:
        notes.append("tokens out are counted as events with text, since the server sends no usage")
    return notes
