"""Penalties, bias, masks and filters by hand, and the sampler's promises about batches."""

from __future__ import annotations

import pytest
import torch
from engine_support.sampled_rows import CPU, Row, draw, probabilities
from engine_support.token_masks import masks_for

from blade_llm.sampling.parameters import SamplingParams
from blade_llm.sampling.sampler import SampledRows, Sampler
from blade_llm.sampling.table import SamplingTable


def test_presence_and_frequency_count_the_output_only() -> None:
    params = SamplingParams(temperature=1.0, presence_penalty=0.5, frequency_penalty=-0.25)
    row = Row(params, tokens=[0, 1, 1, 1, 2, 2, 3, 0], prompt=4)
    expected = torch.zeros(8)
    expected[0] -= 0.5 - 0.25
    expected[2] -= 0.5 - 2 * 0.25
    expected[3] -= 0.5 - 0.25
    torch.testing.assert_close(probabilities(row, torch.zeros(8)), expected.softmax(-1))


def test_repetition_comes_before_the_subtracted_penalties() -> None:
    params = SamplingParams(temperature=2.0, repetition_penalty=2.0, presence_penalty=1.0)
    logits = torch.tensor([4.0, -4.0, 4.0, -4.0])
    expected = torch.tensor([4.0 / 2 - 1.0, -4.0 * 2 - 1.0, 4.0 / 2, -4.0])
    row = Row(params, tokens=[2, 0, 1], prompt=1)
    torch.testing.assert_close(probabilities(row, logits), (expected / 2.0).softmax(-1))


def test_equal_logits_at_the_edge_stay_together() -> None:
    logits = torch.tensor([1.0, 2.0, 2.0, 2.0, 0.0])
    for params in (SamplingParams(top_k=2), SamplingParams(top_p=0.4)):
        kept = probabilities(Row(params), logits) > 0
        assert kept.tolist() == [False, True, True, True, False]


def test_greedy_takes_the_first_of_the_best() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [5.0, 0.0, 0.0]])
    rows = {4: Row(SamplingParams(temperature=0.0)), 1: Row(SamplingParams(temperature=1e-9))}
    assert draw(rows, logits).tokens.tolist() == [1, 0]


def test_min_tokens_masks_until_there_are_enough() -> None:
    logits = torch.tensor([[9.0, 8.0, 7.0, 1.0]])
    params = SamplingParams(temperature=0.0, min_tokens=2)
    drawn = [
        int(draw({0: Row(params, tokens=[3] * (3 + output), prompt=3, masked=(0, 1))}, logits).tokens)
        for output in range(4)
    ]
    assert drawn == [2, 2, 0, 0]
    assert logits.tolist() == [[9.0, 8.0, 7.0, 1.0]]


def mixed_rows(count: int = 12) -> dict[int, Row]:
    """All kinds of requests, in rows out of order."""
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
        order[i]: Row(kinds[i % len(kinds)], tokens=[i, 2, i + 5, 2, 8][: 3 + i % 3], prompt=2, sample_index=i // 6)
        for i in range(count)
    }


@pytest.mark.parametrize("greedy", [True, False], ids=["all greedy", "mixed"])
def test_a_masked_row_draws_what_it_may_and_the_others_what_they_did(greedy: bool) -> None:
    """And the raw log-probability of what it drew."""
    rows = mixed_rows()
    if greedy:
        rows = {row: Row(SamplingParams(temperature=0.0, logprobs=1), tokens=[1, 2, 3]) for row in rows}
    logits = torch.randn(len(rows), 3000, generator=torch.Generator().manual_seed(7)) * 2
    free = draw(rows, logits).tokens.tolist()
    order = list(rows)
    allowed = {order[1]: [2999], order[3]: [17, 900], order[4]: [5, 6, 7], order[10]: [31, 32]}
    drawn = draw(rows, logits, masks_for(order, allowed, 3000))
    for index, row in enumerate(order):
        token = int(drawn.tokens[index])
        if row not in allowed:
            assert token == free[index]
            continue
        assert token in allowed[row]
        if rows[row].params.temperature == 0.0 and greedy:
            assert token == max(allowed[row], key=lambda token: float(logits[index, token]))
    assert drawn.logprobs is not None
    asking = drawn.logprobs.indices
    assert asking
    expected = logits[asking].log_softmax(-1).gather(1, drawn.tokens[asking, None])[:, 0]
    torch.testing.assert_close(drawn.logprobs.chosen, expected)


def test_the_mask_comes_last_of_what_changes_logits() -> None:
    """A bias cannot bring back what the grammar forbids, nor the grammar what min_tokens does."""
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    row = Row(SamplingParams(temperature=0.0, logit_bias={3: 100.0, 0: 5.0}, min_tokens=1), masked=(1,))
    assert draw({0: row}, logits).tokens.tolist() == [3]
    assert draw({0: row}, logits, masks_for([0], {0: [0, 1, 2]}, 4)).tokens.tolist() == [0]
    row.params = SamplingParams(temperature=0.0, min_tokens=1)
    assert draw({0: row}, logits, masks_for([0], {0: [0, 1]}, 4)).tokens.tolist() == [0]


def test_logit_bias_is_added_after_the_penalties() -> None:
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0, logit_bias={1: 2.5, 2: -100.0})
    logits = torch.tensor([4.0, -4.0, 4.0, 1.0])
    row = Row(params, tokens=[2, 0, 1], prompt=1)
    expected = torch.tensor([4.0 / 2 - 1.0, -4.0 * 2 - 1.0 + 2.5, 4.0 / 2 - 100.0, 1.0])
    torch.testing.assert_close(probabilities(row, logits), expected.softmax(-1))


def test_a_stop_token_with_a_bias_still_waits_for_min_tokens() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.5, 0.2]])
    params = SamplingParams(temperature=0.0, min_tokens=2, logit_bias={1: 3.0, 2: 0.4})
    drawn = [
        int(draw({0: Row(params, tokens=[3] * (3 + output), prompt=3, masked=(1,))}, logits).tokens)
        for output in range(3)
    ]
    assert drawn == [2, 2, 1]


@pytest.mark.parametrize("vocabulary", [50, 3000])
def test_draws_do_not_depend_on_batch_or_row(vocabulary: int) -> None:
    rows = mixed_rows()
    logits = torch.randn(len(rows), vocabulary, generator=torch.Generator().manual_seed(5)) * 2
    together = draw(rows, logits).tokens.tolist()
    for i, row in enumerate(rows.values()):
        assert draw({13: row}, logits[i : i + 1]).tokens.tolist() == [together[i]]
    backwards = dict(reversed(rows.items()))
    assert draw(backwards, logits.flip(0)).tokens.tolist() == together[::-1]


def test_seed_sample_index_and_position_each_change_the_draw() -> None:
    logits = torch.zeros(1, 1000)

    def token(seed: int = 1, sample_index: int = 0, length: int = 3) -> int:
        row = Row(SamplingParams(seed=seed), tokens=[2] * length, sample_index=sample_index)
        return int(draw({0: row}, logits).tokens)

    assert token() == token()
    assert len({token(), token(seed=2), token(seed=1 + 2**40), token(sample_index=1), token(length=4)}) == 5


def test_logprobs_are_those_of_the_untouched_logits() -> None:
    rows = mixed_rows(6)
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(6))
    drawn = draw(rows, logits)
    assert drawn.logprobs is not None
    assert drawn.logprobs.indices == [4, 5]
    assert drawn.logprobs.counts == [2, 0]
    expected = logits[4:].log_softmax(-1)
    torch.testing.assert_close(drawn.logprobs.chosen, expected.gather(1, drawn.tokens[4:, None])[:, 0])
    best = expected[0].topk(2)
    assert drawn.logprobs.top_tokens[0].tolist() == best.indices.tolist()
    torch.testing.assert_close(drawn.logprobs.top_values[0], best.values)


def test_a_row_forgets_the_request_before() -> None:
    table = SamplingTable(4, CPU)
    table.enter(2, SamplingParams(temperature=1.0, seed=1, top_k=1, repetition_penalty=5.0), num_prompt_tokens=1)
    table.leave(2)
    table.enter(2, SamplingParams(temperature=1.0, seed=9), num_prompt_tokens=2)
    fresh = SamplingTable(4, CPU)
    fresh.enter(2, SamplingParams(temperature=1.0, seed=9), num_prompt_tokens=2)
    index, logits = torch.tensor([2]), torch.zeros(1, 500)
    token_ids = torch.zeros(4, 8, dtype=torch.int32)
    sampled = SampledRows([2], [2], index, index)
    tokens = [Sampler(which, token_ids).draw(logits, sampled).tokens.tolist() for which in (table, fresh)]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("extreme", [5e-324, 1e-300, 1e-45, 1e-40, 1e-30])
def test_numbers_that_are_too_small_for_the_device(extreme: float) -> None:
    """As top-p they keep the likeliest token, as min-p they keep all, as a temperature they are 0."""
    table = SamplingTable(3, CPU)
    table.enter(0, SamplingParams(top_p=extreme), num_prompt_tokens=1)
    table.enter(1, SamplingParams(min_p=extreme), num_prompt_tokens=1)
    table.enter(2, SamplingParams(temperature=1e6, repetition_penalty=1e6), num_prompt_tokens=1)
    assert table.values[0, SamplingTable.TOP_P] >= torch.finfo(torch.float32).tiny
    assert table.values[1, SamplingTable.MIN_P] == 0
    assert table.values.isfinite().all()
    logits = torch.tensor([0.0, 3.0, 2.9, -5.0])
    assert probabilities(Row(SamplingParams(top_p=extreme)), logits).tolist() == [0.0, 1.0, 0.0, 0.0]
    torch.testing.assert_close(probabilities(Row(SamplingParams(min_p=extreme)), logits), logits.softmax(-1))
    assert probabilities(Row(SamplingParams(temperature=1e6, repetition_penalty=1e-6)), logits).isfinite().all()
    assert draw({0: Row(SamplingParams(temperature=extreme))}, logits.unsqueeze(0)).tokens.tolist() == [1]
