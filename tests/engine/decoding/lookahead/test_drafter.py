"""When lookahead decoding is worth its tokens, and what it adds to a step."""

from __future__ import annotations

from typing import Any

import pytest

from blade_llm.config import SpeculativeConfig
from blade_llm.decoding.lookahead.drafter import LookaheadDrafter
from blade_llm.decoding.step_seconds import StepSeconds
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.drafting import Draft, StepRoom, StepTokens
from blade_llm.scheduling.request import Request

CONFIG = SpeculativeConfig(method="look_ahead", look_ahead_window_size=4, look_ahead_gram_size=2, guess_set_size=3)
FREE = StepSeconds({1: 1.0, 1000: 1.0})
DEAR = StepSeconds({1: 1.0, 2: 2.0})
ROOM = StepRoom(1000, 1000)


def request_of(text: list[int], **sampling: Any) -> Request:
    request = Request("r", text, SamplingParams(seed=1, **sampling))
    request.token_ids = list(text)
    return request


def propose(drafter: LookaheadDrafter, request: Request, room: int = 100, most: StepRoom = ROOM) -> Draft:
    (draft,) = drafter.propose([request], [room], most, 0)
    return draft


def test_the_text_itself_is_guessed_from_and_the_window_goes_on() -> None:
    drafter = LookaheadDrafter(CONFIG, FREE)
    request = request_of([1, 2, 3, 1, 2, 4, 1])
    draft = propose(drafter, request)
    assert draft.tree is not None
    assert draft.tokens is not None
    assert draft.tokens[:3] == [2, 4, 1]
    assert (draft.tree.num_guesses, draft.length) == (3, 3 + 3)
    assert draft.tree.parents == [-1, 0, 1, -1, 3, 4]
    assert draft.tree.window_ends == [-1, 3, 4, 5]
    assert draft.tree.num_sampled == 1 + 3 + 3
    drafter.observe(request, 3, 0, [50, 51, 52, 53])
    request.token_ids.append(9)
    draft = propose(drafter, request)
    assert draft.tokens is not None
    assert draft.tokens[-3:] == [51, 52, 53], "what was sampled is the next row; its first is known now"
    request.token_ids[-1] = 50
    draft = propose(drafter, request)
    assert drafter.counts.draft_tokens == 3


@pytest.mark.parametrize(
    ("room", "most", "guesses", "window"),
    [(4, ROOM, 1, 3), (2, ROOM, 2, 0), (0, ROOM, 0, 0), (100, StepRoom(5, 100), 2, 3), (100, StepRoom(100, 4), 1, 3)],
)
def test_the_window_comes_first_and_as_a_whole(room: int, most: StepRoom, guesses: int, window: int) -> None:
    draft = propose(LookaheadDrafter(CONFIG, FREE), request_of([1, 2, 3, 1, 2, 4, 1]), room, most)
    assert draft.length == guesses + window
    assert (draft.tree is not None) == (draft.length > 0)
    if draft.tree is not None:
        assert draft.tree.num_guesses == guesses


@pytest.mark.parametrize(
    "sampling",
    [
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": 1},
        {"bad_words_token_ids": ((1, 2),)},
    ],
)
def test_what_depends_on_all_tokens_is_verified_along_one_chain(sampling: dict[str, Any]) -> None:
    text = [1, 2, 8, 1, 3, 8, 1]
    plain = propose(LookaheadDrafter(CONFIG, FREE), request_of(text))
    assert plain.tree is not None
    assert plain.tree.parents[:3] == [-1, 0, 1]
    (one,) = [propose(LookaheadDrafter(CONFIG, FREE), request_of(text, **sampling))]
    assert one.tree is not None
    count = one.tree.num_guesses
    assert one.tree.parents[:count] == list(range(-1, count - 1))


def test_a_deterministic_engine_verifies_one_chain() -> None:
    """Further branches would be added up in another order."""
    text = [1, 2, 8, 9, 1, 3, 8, 1]
    branching, one = (
        propose(LookaheadDrafter(CONFIG, FREE, deterministic=deterministic), request_of(text))
        for deterministic in (False, True)
    )
    assert branching.tree is not None
    assert branching.tree.parents[: branching.tree.num_guesses] == [-1, 0, 1]
    assert one.tree is not None
    count = one.tree.num_guesses
    assert one.tree.parents[:count] == list(range(-1, count - 1))


def test_tokens_that_cost_more_than_they_bring_are_not_drafted_and_proposals_pause() -> None:
    drafter = LookaheadDrafter(CONFIG, DEAR)
    request = request_of([1, 2, 3, 1, 2, 4, 1])
    steps = [propose(drafter, request).length for _ in range(40) if drafter.active(1)]
    assert set(steps) == {0}
    assert len(steps) < 40
    assert LookaheadDrafter(CONFIG, FREE).active(1)


def test_rejected_guesses_end_it_and_accepted_ones_keep_it() -> None:
    seconds = {1: 1.0, 1000: 1.0, 2: 1.4, 999: 1.4}
    for accepted, goes_on in ((0, False), (2, True)):
        drafter = LookaheadDrafter(CONFIG, StepSeconds(dict(sorted(seconds.items()))))
        request = request_of([1, 2, 3, 1, 2, 4, 1])
        for _ in range(60):
            if propose(drafter, request).length:
                drafter.observe(request, 3, accepted, [1, 2, 3, 4])
        assert bool(propose(drafter, request).length) == goes_on


def test_of_several_decodes_those_get_trees_of_which_most_is_expected() -> None:
    drafter = LookaheadDrafter(CONFIG, StepSeconds({1: 1.0, 8: 1.0, 10: 1.0, 20: 3.0}))
    good, bad = request_of([1, 2, 3, 1]), request_of([4, 5, 6, 4])
    drafter.propose([good, bad], [0, 0], ROOM, 0)
    for _ in range(20):
        drafter.observe(good, 3, 2, [1, 2, 3, 4])
        drafter.observe(bad, 3, 0, [1, 2, 3, 4])
    drafts = drafter.propose([bad, good], [100, 100], ROOM, 0)
    assert [draft.length > 0 for draft in drafts] == [False, True]


def test_above_a_batch_it_is_off_and_what_ended_is_forgotten() -> None:
    drafter = LookaheadDrafter(
        SpeculativeConfig(method="look_ahead", disable_above_batch=2), StepSeconds({1: 1.0, 1000: 1.0})
    )
    assert drafter.active(2)
    assert not drafter.active(3)
    request = request_of([1, 2, 3])
    propose(drafter, request)
    drafter.observe_step(StepTokens(1, 5, 5, 0, 0), 1.0, 0.0)
    drafter.forget(request)
    drafter.observe(request, 3, 1, [1])
    assert not drafter._requests
