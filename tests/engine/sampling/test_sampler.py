"""Penalties, bias, masks and filters by hand, and the sampler's promises about batches."""

from __future__ import annotations

import pytest
import torch
from engine_support.sampled_slots import CPU, Slot, probabilities, sample
from engine_support.token_masks import masks_for

from blade_llm.sampling.parameters import SamplingParams
from blade_llm.sampling.sampler import SampledSlots, Sampler
from blade_llm.sampling.table import SamplingTable


def test_presence_and_frequency_count_the_output_only() -> None:
    params = SamplingParams(temperature=1.0, presence_penalty=0.5, frequency_penalty=-0.25)
    slot = Slot(params, tokens=[0, 1, 1, 1, 2, 2, 3, 0], prompt=4)
    expected = torch.zeros(8)
    expected[0] -= 0.5 - 0.25
    expected[2] -= 0.5 - 2 * 0.25
    expected[3] -= 0.5 - 0.25
    torch.testing.assert_close(probabilities(slot, torch.zeros(8)), expected.softmax(-1))


def test_repetition_comes_before_the_subtracted_penalties() -> None:
    params = SamplingParams(temperature=2.0, repetition_penalty=2.0, presence_penalty=1.0)
    logits = torch.tensor([4.0, -4.0, 4.0, -4.0])
    expected = torch.tensor([4.0 / 2 - 1.0, -4.0 * 2 - 1.0, 4.0 / 2, -4.0])
    slot = Slot(params, tokens=[2, 0, 1], prompt=1)
    torch.testing.assert_close(probabilities(slot, logits), (expected / 2.0).softmax(-1))


def test_equal_logits_at_the_edge_stay_together() -> None:
    logits = torch.tensor([1.0, 2.0, 2.0, 2.0, 0.0])
    for params in (SamplingParams(top_k=2), SamplingParams(top_p=0.4)):
        kept = probabilities(Slot(params), logits) > 0
        assert kept.tolist() == [False, True, True, True, False]


def test_greedy_takes_the_first_of_the_best() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [5.0, 0.0, 0.0]])
    slots = {4: Slot(SamplingParams(temperature=0.0)), 1: Slot(SamplingParams(temperature=1e-9))}
    assert sample(slots, logits).tokens.tolist() == [1, 0]


def test_min_tokens_masks_until_there_are_enough() -> None:
    logits = torch.tensor([[9.0, 8.0, 7.0, 1.0]])
    params = SamplingParams(temperature=0.0, min_tokens=2)
    sampled = [
        int(sample({0: Slot(params, tokens=[3] * (3 + output), prompt=3, masked=(0, 1))}, logits).tokens)
        for output in range(4)
    ]
    assert sampled == [2, 2, 0, 0]
    assert logits.tolist() == [[9.0, 8.0, 7.0, 1.0]]


def mixed_slots(count: int = 12) -> dict[int, Slot]:
    """All kinds of requests, in slots out of order."""
    kinds = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.9, seed=11),
        SamplingParams(temperature=1.4, seed=11, top_k=30),
        SamplingParams(temperature=1.1, seed=2**63 + 5, top_p=0.9),
        SamplingParams(temperature=0.0, repetition_penalty=1.3, logprobs=2),
        SamplingParams(temperature=1.2, seed=-4, presence_penalty=1.0, top_p=0.95, top_k=500, logprobs=0),
    ]
    order = [9, 2, 14, 7, 0, 5, 11, 1, 12, 3, 8, 15]
    return {
        order[i]: Slot(kinds[i % len(kinds)], tokens=[i, 2, i + 5, 2, 8][: 3 + i % 3], prompt=2, sample_index=i // 6)
        for i in range(count)
    }


@pytest.mark.parametrize("greedy", [True, False], ids=["all greedy", "mixed"])
def test_a_masked_slot_samples_what_it_may_and_the_others_what_they_did(greedy: bool) -> None:
    """And the raw log-probability of what it sampled."""
    slots = mixed_slots()
    if greedy:
        slots = {slot: Slot(SamplingParams(temperature=0.0, logprobs=1), tokens=[1, 2, 3]) for slot in slots}
    logits = torch.randn(len(slots), 3000, generator=torch.Generator().manual_seed(7)) * 2
    free = sample(slots, logits).tokens.tolist()
    order = list(slots)
    allowed = {order[1]: [2999], order[3]: [17, 900], order[4]: [5, 6, 7], order[10]: [31, 32]}
    sampled = sample(slots, logits, masks_for(order, allowed, 3000))
    for index, slot in enumerate(order):
        token = int(sampled.tokens[index])
        if slot not in allowed:
            assert token == free[index]
            continue
        assert token in allowed[slot]
        if slots[slot].params.temperature == 0.0 and greedy:
            assert token == max(allowed[slot], key=lambda token: float(logits[index, token]))
    assert sampled.logprobs is not None
    with_logprobs = sampled.logprobs.indices
    assert with_logprobs
    expected = logits[with_logprobs].log_softmax(-1).gather(1, sampled.tokens[with_logprobs, None])[:, 0]
    torch.testing.assert_close(sampled.logprobs.chosen, expected)


def test_the_mask_comes_last_of_what_changes_logits() -> None:
    """A bias cannot bring back what the grammar forbids, nor the grammar what min_tokens does."""
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    slot = Slot(SamplingParams(temperature=0.0, logit_bias={3: 100.0, 0: 5.0}, min_tokens=1), masked=(1,))
    assert sample({0: slot}, logits).tokens.tolist() == [3]
    assert sample({0: slot}, logits, masks_for([0], {0: [0, 1, 2]}, 4)).tokens.tolist() == [0]
    slot.params = SamplingParams(temperature=0.0, min_tokens=1)
    assert sample({0: slot}, logits, masks_for([0], {0: [0, 1]}, 4)).tokens.tolist() == [0]


def test_logit_bias_is_added_after_the_penalties() -> None:
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0, logit_bias={1: 2.5, 2: -100.0})
    logits = torch.tensor([4.0, -4.0, 4.0, 1.0])
    slot = Slot(params, tokens=[2, 0, 1], prompt=1)
    expected = torch.tensor([4.0 / 2 - 1.0, -4.0 * 2 - 1.0 + 2.5, 4.0 / 2 - 100.0, 1.0])
    torch.testing.assert_close(probabilities(slot, logits), expected.softmax(-1))


def test_a_stop_token_with_a_bias_still_waits_for_min_tokens() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.5, 0.2]])
    params = SamplingParams(temperature=0.0, min_tokens=2, logit_bias={1: 3.0, 2: 0.4})
    sampled = [
        int(sample({0: Slot(params, tokens=[3] * (3 + output), prompt=3, masked=(1,))}, logits).tokens)
        for output in range(3)
    ]
    assert sampled == [2, 2, 1]


@pytest.mark.parametrize("vocabulary", [50, 3000])
def test_samples_do_not_depend_on_batch_or_slot(vocabulary: int) -> None:
    slots = mixed_slots()
    logits = torch.randn(len(slots), vocabulary, generator=torch.Generator().manual_seed(5)) * 2
    together = sample(slots, logits).tokens.tolist()
    for i, slot in enumerate(slots.values()):
        assert sample({13: slot}, logits[i : i + 1]).tokens.tolist() == [together[i]]
    backwards = dict(reversed(slots.items()))
    assert sample(backwards, logits.flip(0)).tokens.tolist() == together[::-1]


def test_seed_sample_index_and_position_each_change_the_sample() -> None:
    logits = torch.zeros(1, 1000)

    def token(seed: int = 1, sample_index: int = 0, length: int = 3) -> int:
        slot = Slot(SamplingParams(seed=seed), tokens=[2] * length, sample_index=sample_index)
        return int(sample({0: slot}, logits).tokens)

    assert token() == token()
    assert len({token(), token(seed=2), token(seed=1 + 2**40), token(sample_index=1), token(length=4)}) == 5


def test_logprobs_are_those_of_the_untouched_logits() -> None:
    slots = mixed_slots(6)
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(6))
    sampled = sample(slots, logits)
    assert sampled.logprobs is not None
    assert sampled.logprobs.indices == [4, 5]
    assert sampled.logprobs.counts == [2, 0]
    expected = logits[4:].log_softmax(-1)
    torch.testing.assert_close(sampled.logprobs.chosen, expected.gather(1, sampled.tokens[4:, None])[:, 0])
    best = expected[0].topk(2)
    assert sampled.logprobs.top_tokens[0].tolist() == best.indices.tolist()
    torch.testing.assert_close(sampled.logprobs.top_values[0], best.values)


def test_a_slot_forgets_the_request_before() -> None:
    table = SamplingTable(4, CPU)
    table.write(2, SamplingParams(temperature=1.0, seed=1, top_k=1, repetition_penalty=5.0), num_prompt_tokens=1)
    table.free(2)
    table.write(2, SamplingParams(temperature=1.0, seed=9), num_prompt_tokens=2)
    fresh = SamplingTable(4, CPU)
    fresh.write(2, SamplingParams(temperature=1.0, seed=9), num_prompt_tokens=2)
    index, logits = torch.tensor([2]), torch.zeros(1, 500)
    token_ids = torch.zeros(4, 8, dtype=torch.int32)
    sampled = SampledSlots([2], [2], index, index)
    tokens = [Sampler(which, token_ids).sample(logits, sampled).tokens.tolist() for which in (table, fresh)]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("extreme", [5e-324, 1e-300, 1e-45, 1e-40, 1e-30])
def test_numbers_that_are_too_small_for_the_device(extreme: float) -> None:
    """As top-p they keep the likeliest token, as min-p they keep all, as a temperature they are 0."""
    table = SamplingTable(3, CPU)
    table.write(0, SamplingParams(top_p=extreme), num_prompt_tokens=1)
    table.write(1, SamplingParams(min_p=extreme), num_prompt_tokens=1)
    table.write(2, SamplingParams(temperature=1e6, repetition_penalty=1e6), num_prompt_tokens=1)
    assert table.values[0, SamplingTable.TOP_P] >= torch.finfo(torch.float32).tiny
    assert table.values[1, SamplingTable.MIN_P] == 0
    assert table.values.isfinite().all()
    logits = torch.tensor([0.0, 3.0, 2.9, -5.0])
    assert probabilities(Slot(SamplingParams(top_p=extreme)), logits).tolist() == [0.0, 1.0, 0.0, 0.0]
    torch.testing.assert_close(probabilities(Slot(SamplingParams(min_p=extreme)), logits), logits.softmax(-1))
    assert probabilities(Slot(SamplingParams(temperature=1e6, repetition_penalty=1e-6)), logits).isfinite().all()
    assert sample({0: Slot(SamplingParams(temperature=extreme))}, logits.unsqueeze(0)).tokens.tolist() == [1]
