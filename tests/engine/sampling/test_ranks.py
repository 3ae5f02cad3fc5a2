"""Sampling by several ranks: every rank gets what one rank samples, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from engine_support.sampled_slots import Slot, sampler_for
from engine_support.thread_ranks import thread_groups
from engine_support.token_masks import masks_for
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from blade_llm.layers.vocabulary import gather_logits
from blade_llm.parallel.shares import share_of
from blade_llm.sampling.masks import TokenMasks
from blade_llm.sampling.parameters import INVALID_TOKEN, SamplingParams
from blade_llm.sampling.ranks import sample_by_ranks
from blade_llm.sampling.sampler import SamplerOutput
from blade_llm.spec.vocabulary import vocabulary_rows

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.0, 1.6]),
    top_k=st.sampled_from([0, 0, 1, 5]),
    top_p=st.sampled_from([1.0, 1.0, 0.3, 0.9]),
    min_p=st.sampled_from([0.0, 0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.4]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.5]),
    presence_penalty=st.sampled_from([0.0, -0.5]),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.sampled_from([None, None, 0, 1, 7, 20]),
    logit_bias=st.dictionaries(st.integers(0, 6), st.sampled_from([-100.0, -1.5, 3.0]), max_size=2),
    bad_words_token_ids=st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    allowed_token_ids=st.none() | st.sets(st.integers(0, 7), min_size=1, max_size=5).map(tuple),
)


@given(data=st.data(), size=st.integers(2, 5), vocabulary=st.integers(8, 83))
@settings(max_examples=60, deadline=None)
def test_every_rank_gets_what_one_samples(data: st.DataObject, size: int, vocabulary: int) -> None:
    """Logits with equal ones among them, in whichever rank's part they are, and rows of which some are no numbers."""
    assume(vocabulary_rows(vocabulary, size - 1, size))  # else refused
    params = data.draw(st.lists(PARAMS, min_size=1, max_size=9))
    tokens = st.lists(st.integers(0, 6), min_size=1, max_size=12)
    rows = {slot: Slot(each, data.draw(tokens), 1) for slot, each in enumerate(params)}
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    logits = (torch.randn(len(rows), vocabulary, generator=generator) * 4).round() / 2
    for row in data.draw(st.sets(st.sampled_from(range(len(rows))), max_size=2)):
        logits[row, data.draw(st.integers(0, vocabulary - 1))] = float("nan")
    allowed = {
        slot: sorted(data.draw(st.sets(st.integers(0, vocabulary - 1), min_size=1, max_size=4)))
        for slot in data.draw(st.sets(st.sampled_from(range(len(rows))), max_size=4))
    }
    masks = masks_for(list(rows), allowed, vocabulary)
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    check_ranks(rows, logits.to(dtype), masks, size)


@given(data=st.data(), size=st.integers(2, 5), vocabulary=st.integers(1, 83))
@settings(max_examples=60, deadline=None)
def test_the_likeliest_of_all_parts(data: st.DataObject, size: int, vocabulary: int) -> None:
    """Greedy rows alone, of which each rank finds the likeliest of its part."""
    assume(vocabulary_rows(vocabulary, size - 1, size))  # else refused
    count = data.draw(st.integers(1, 9))
    numbers = st.sampled_from([-float("inf"), -2.0, -0.0, 0.0, 1.5, 7.0, float("inf"), float("nan")])
    values = data.draw(st.lists(numbers, min_size=count * vocabulary, max_size=count * vocabulary))
    rows = {slot: Slot(SamplingParams(temperature=0.0)) for slot in range(count)}
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    check_ranks(rows, torch.tensor(values, dtype=dtype).view(count, vocabulary), None, size)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("temperatures", [(0.0, 0.0), (0.0, 1.0)])
def test_a_broken_row_is_noticed_by_all_ranks(size: int, temperatures: tuple[float, float]) -> None:
    """Wherever it is, and whichever part of its logits is no number."""
    rows = {slot: Slot(SamplingParams(temperature=temperatures[slot % 2], seed=slot)) for slot in range(4)}
    for broken in range(4):
        logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
        logits[broken, 40] = float("nan")
        reported = check_ranks(rows, logits, None, size).reported
        assert reported is not None
        assert [token == INVALID_TOKEN for token in reported.tolist()] == [row == broken for row in range(4)]


def test_more_ranks_than_rows() -> None:
    logits = torch.randn(1, 70, generator=torch.Generator().manual_seed(1))
    found = check_ranks({0: Slot(SamplingParams(temperature=0.0, logprobs=3))}, logits, None, 4)
    assert found.tokens.tolist() == [int(logits.argmax())]
    assert found.logprobs is not None
    assert found.logprobs.counts == [3]


def test_a_mask_of_one_part_of_the_vocabulary() -> None:
    """Nothing is allowed in the other ranks' parts."""
    logits = torch.randn(3, 96, generator=torch.Generator().manual_seed(1))
    rows = {slot: Slot(SamplingParams(temperature=float(slot), seed=1)) for slot in range(3)}
    masks = masks_for(list(rows), {0: [90], 2: [65, 70]}, 96)
    tokens = check_ranks(rows, logits, masks, 3).tokens.tolist()
    assert tokens[0] == 90
    assert tokens[2] in (65, 70)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [0, 1, 2, 6, 256])
def test_shares_are_all_rows_and_differ_by_one_at_most(rows: int, size: int) -> None:
    shares = [share_of(rows, rank, size) for rank in range(size)]
    assert [row for share in shares for row in share] == list(range(rows))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def check_ranks(rows: dict[int, Slot], logits: torch.Tensor, masks: TokenMasks | None, size: int) -> SamplerOutput:
    """What one rank samples, which is what ``size`` ranks do, each with its part of the vocabulary's ``logits``."""
    sampler, sampled = sampler_for(rows)
    expected = sampler.sample(logits, sampled, masks)
    groups = thread_groups(size)

    def by_rank(rank: int) -> SamplerOutput:
        own = vocabulary_rows(logits.shape[1], rank, size)
        part = logits[:, own.start : own.stop]
        assert equal(gather_logits(part, logits.shape[1], groups[rank]), logits)
        try:
            return sample_by_ranks(sampler, groups[rank], logits.shape[1], part.contiguous(), sampled, masks)
        except BaseException:
            groups[rank].close()  # nobody waits for this one
            raise

    with ThreadPoolExecutor(size) as pool:
        for found in pool.map(by_rank, range(size)):
            for ours, theirs in zip(tensors_of(found), tensors_of(expected), strict=True):
                assert equal(ours, theirs)
            if expected.logprobs is not None:
                assert found.logprobs is not None
                assert found.logprobs.indices == expected.logprobs.indices
                assert found.logprobs.counts == expected.logprobs.counts
    return expected


def tensors_of(output: SamplerOutput) -> Sequence[torch.Tensor]:
    assert output.reported is not None
    tensors = [output.tokens, output.reported]
    if output.logprobs is not None:
        tensors += [output.logprobs.chosen]
        for index, count in enumerate(output.logprobs.counts):
            tensors += [output.logprobs.top_values[index, :count], output.logprobs.top_tokens[index, :count]]
    return tensors


def equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Bit by bit: NaN equals itself."""
    return first.dtype == second.dtype and torch.equal(first.float().nan_to_num(1e9), second.float().nan_to_num(1e9))
