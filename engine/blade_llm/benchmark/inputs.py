"""The samples that the options select."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Final

from blade_llm.benchmark.calibration import CHARACTERS_PER_TOKEN, Calibration, count_like, make_prompts
from blade_llm.benchmark.client.client import Client
from blade_llm.benchmark.options import OUTPUT_TOKENS, Options
from blade_llm.benchmark.workload.datasets import Sample, endless, pick_sharegpt, read_prompts, read_sharegpt, synthetic
from blade_llm.benchmark.workload.lengths import fixed_lengths, sharegpt_lengths
from blade_llm.benchmark.workload.words import token_counter

_MOST_AHEAD: Final = 5000


async def make_samples(
    options: Options, client: Client, found: Calibration, random_source: random.Random
) -> tuple[Iterator[Sample], Sequence[str]]:
    """Samples without end, and notes for the report. Raises :class:`BenchmarkError`."""
    count = token_counter(options.tokenizer) if options.tokenizer else None
    if options.dataset is not None:
        turns = read_sharegpt(options.dataset)
        counter = count or await count_like(client, found, [answer for _, answer in turns])
        return endless(pick_sharegpt(turns, counter, options.max_len, options.output_len), random_source), ()
    if options.prompts is not None:
        prompts = read_prompts(options.prompts, count or _by_characters, options.output_len or OUTPUT_TOKENS)
        for sample in prompts:
            sample.body(options.endpoint)  # refuses what the endpoint cannot take
        return endless(prompts, random_source), ()
    maker, notes = await make_prompts(client, found, count)
    samples = synthetic(_lengths(options, random_source), maker, random_source)
    # As many as will be needed, so that making them takes nothing from the load.
    ahead = 0 if options.find_rate else min(_MOST_AHEAD, options.total_requests) + options.warm_up_requests
    return itertools.chain(list(itertools.islice(samples, int(ahead))), samples), notes


def _lengths(options: Options, random_source: random.Random) -> Iterator[tuple[int, int]]:
    if options.input_len is not None:
        return fixed_lengths(options.input_len, options.output_len or OUTPUT_TOKENS)
    drawn = sharegpt_lengths(random_source, options.max_len)
    return ((tokens_in, options.output_len or tokens_out) for tokens_in, tokens_out in drawn)


def _by_characters(text: str) -> int:
    return round(len(text) / CHARACTERS_PER_TOKEN)
