"""Bad words and allowed tokens: what may never be sampled, by hand and against a slow and obvious rule."""

from __future__ import annotations

import pytest
import torch
from engine_support.sampled_slots import Slot, probabilities, sample, sampler_for
from engine_support.token_masks import masks_for
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_llm.sampling.parameters import NO_TOKEN, SamplingParams
from blade_llm.sampling.restrictions import allowed_mask, word_sequences

TOKEN = st.integers(0, 9)
WORDS = st.lists(st.lists(TOKEN, min_size=1, max_size=4).map(tuple), max_size=8).map(tuple)


def completes(output: list[int], token: int, words: tuple[tuple[int, ...], ...]) -> bool:
    whole = (*output, token)
    return any(whole[len(whole) - len(word) :] == word for word in words if len(word) <= len(whole))


@given(
    words=st.lists(WORDS, min_size=1, max_size=4),
    tokens=st.lists(st.lists(TOKEN, min_size=1, max_size=12), min_size=4, max_size=4),
    prompt=st.integers(0, 4),
    bias=st.dictionaries(TOKEN, st.sampled_from([-3.0, 2.0]), max_size=3),
)
@settings(max_examples=150, deadline=None)
def test_no_row_completes_a_bad_word(
    words: list[tuple[tuple[int, ...], ...]], tokens: list[list[int]], prompt: int, bias: dict[int, float]
) -> None:
    """Rows of one batch with words of their own. Only the output counts, not the prompt before it."""
    slots = {
        11 - 2 * row: Slot(
            SamplingParams(temperature=0.0, bad_words_token_ids=own, logit_bias=bias),
            tokens=tokens[row],
            prompt=min(prompt, len(tokens[row])),
        )
        for row, own in enumerate(words)
    }
    logits = torch.randn(len(slots), 10, generator=torch.Generator().manual_seed(len(words)))
    found = sample(slots, logits).reported
    assert found is not None
    for row, slot in enumerate(slots.values()):
        left = logits[row].clone()
        for token, value in bias.items():
            left[token] += value
        for token in range(10):
            if completes(slot.tokens[slot.prompt :], token, slot.params.bad_words_token_ids):
                left[token] = float("-inf")
        expected = NO_TOKEN if (left == float("-inf")).all() else int(left.argmax())
        assert int(found[row]) == expected


def test_a_bad_word_changes_nothing_else() -> None:
    logits = torch.tensor([1.0, 2.0, 3.0, 0.5])
    params = SamplingParams(temperature=0.8, bad_words_token_ids=((1, 2), (3,), (0, 1, 1)))
    expected = logits.clone()
    expected[3] = float("-inf")
    free = probabilities(Slot(params, tokens=[1, 0], prompt=1), logits)
    torch.testing.assert_close(free, (expected / 0.8).softmax(-1))
    expected[2] = float("-inf")
    after = probabilities(Slot(params, tokens=[1, 1], prompt=1), logits)
    torch.testing.assert_close(after, (expected / 0.8).softmax(-1))


def test_a_word_that_the_prompt_begins_may_come() -> None:
    slot = Slot(SamplingParams(temperature=0.0, bad_words_token_ids=((1, 2),)), tokens=[0, 1], prompt=2)
    assert sample({0: slot}, torch.tensor([[0.0, 0.0, 9.0]])).tokens.tolist() == [2]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_only_allowed_tokens(temperature: float) -> None:
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(4))
    params = SamplingParams(temperature=temperature, seed=5, allowed_token_ids=(99, 31, 64))
    slots = {7: Slot(SamplingParams(temperature=0.0)), 2: Slot(params), 3: Slot(SamplingParams(temperature=0.0))}
    found = sample(slots, logits).tokens.tolist()
    assert found[0] == int(logits[0].argmax())
    assert found[2] == int(logits[2].argmax())
    assert found[1] in (99, 31, 64)
    if not temperature:
        assert found[1] == max((31, 64, 99), key=lambda token: float(logits[1, token]))
    expected = torch.full((100,), float("-inf"))
    expected[[31, 64, 99]] = logits[1, [31, 64, 99]] / (temperature or 1.0)
    if temperature:
        torch.testing.assert_close(probabilities(slots[2], logits[1]), expected.softmax(-1))


def test_a_grammars_mask_is_taken_for_both() -> None:
    """Who fills it has left out what is not allowed; the others' masks stay their own."""
    logits = torch.tensor([[0.0, 5.0, 1.0, 2.0, 3.0]]).repeat(3, 1)
    allowed = SamplingParams(temperature=0.0, allowed_token_ids=(0, 2, 3))
    slots = {4: Slot(allowed), 1: Slot(allowed), 9: Slot(SamplingParams(temperature=0.0))}
    assert sample(slots, logits, masks_for([4, 1, 9], {1: [0, 2]}, 5)).tokens.tolist() == [3, 2, 1]


def test_a_slot_takes_the_allowed_tokens_of_its_next_request() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    sampler, sampled = sampler_for({5: Slot(SamplingParams(temperature=0.0, allowed_token_ids=(0, 1)))})
    assert [sampler.sample(logits, sampled).tokens.tolist() for _ in range(2)] == [[1], [1]]
    table = sampler._table
    table.write(5, SamplingParams(temperature=0.0, allowed_token_ids=(2,)), num_prompt_tokens=3)
    assert sampler.sample(logits, sampled).tokens.tolist() == [2]
    table.write(5, SamplingParams(temperature=0.0), num_prompt_tokens=3)
    assert sampler.sample(logits, sampled).tokens.tolist() == [3]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_left_is_reported_for_that_row_alone(temperature: float) -> None:
    params = SamplingParams(
        temperature=temperature, top_p=0.9, seed=1, allowed_token_ids=(1, 2), bad_words_token_ids=((1,), (4, 2))
    )
    slots = {0: Slot(params, [4, 4], 1), 1: Slot(params, [4, 3], 1)}
    sampled = sample(slots, torch.zeros(2, 6))
    assert sampled.reported is not None
    assert sampled.reported.tolist() == [NO_TOKEN, 2]
    assert 0 <= int(sampled.tokens[0]) < 6


def test_words_stand_without_and_with_a_space_before_them() -> None:
    pieces = {"cat": [1, 2], " cat": [7], "dog": [3], " dog": [9, 3], "\n": [5], " \n": [6, 5]}
    assert word_sequences(["cat", " dog", "\n"], lambda text: pieces[text]) == ((1, 2), (7,), (3,), (5,))


def test_masks_hold_one_bit_a_token() -> None:
    words = allowed_mask((0, 31, 32, 500), (31,), 70)
    assert words.view("uint32").tolist() == [1, 1, 0]
    assert allowed_mask(None, (1,), 34).view("uint32").tolist() == [2**32 - 3, 3]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"bad_words": ("",)}, "bad_words"),
        ({"bad_words": ("x",) * 129}, "bad_words"),
        ({"bad_words_token_ids": ((),)}, "bad_words_token_ids"),
        ({"bad_words_token_ids": ((1,) * 1025,)}, "bad_words"),
        ({"allowed_token_ids": ()}, "allowed_token_ids"),
        ({"allowed_token_ids": (-1,)}, "allowed_token_ids"),
        ({"allowed_token_ids": tuple(range(16_385))}, "allowed_token_ids"),
        ({"allowed_token_ids": (1,), "beam_width": 2}, "allowed_token_ids"),
        ({"bad_words_token_ids": ((1,),), "beam_width": 2}, "bad_words"),
    ],
)
def test_bounds(fields: dict[str, object], name: str) -> None:
    problem = SamplingParams(**fields).problem()  # type: ignore[arg-type]
    assert problem is not None
    assert problem[0] == name
