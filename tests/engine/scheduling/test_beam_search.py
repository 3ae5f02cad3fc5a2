"""What a beam search reads of the offers, and which of equal ones it takes."""

from __future__ import annotations

from collections.abc import Iterator

from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs
from blade_llm.scheduling.beams.search import BeamSearch


class Counted(tuple[int, ...]):
    """Counts what is read of all of them."""

    read = 0

    def __iter__(self) -> Iterator[int]:
        for value in super().__iter__():
            Counted.read += 1
            yield value


def search_of(width: int, stops: int = 1) -> BeamSearch:
    return BeamSearch(SamplingParams(beam_width=width), frozenset(range(stops)), 100)


def test_a_step_reads_no_more_offers_than_go_on() -> None:
    width, stops = 64, 31
    search = search_of(width, stops)
    num_logprobs = search.slot_sampling.logprobs
    assert num_logprobs == width + stops  # each slot's: enough if all that go on are of one slot
    tokens = Counted(range(1000, 1000 + num_logprobs))
    candidates = TokenLogprobs(0.0, tokens, tuple(-0.01 * index for index in range(num_logprobs)))
    assert len(search.advance([candidates])) == width
    Counted.read = 0
    assert len(search.advance([candidates] * width)) == width
    assert Counted.read <= 3 * width  # of 6080


def test_there_are_candidates_enough_when_one_beam_has_all_the_best_and_all_the_ends() -> None:
    width, stops = 4, 7
    search = search_of(width, stops)
    num_logprobs = search.slot_sampling.logprobs or 0
    first = TokenLogprobs(0.0, (50, 51, 52, 53), (0.0, -100.0, -100.0, -100.0))
    assert len(search.advance([first])) == width
    ends_first = TokenLogprobs(0.0, tuple(range(num_logprobs)), tuple(-float(index) for index in range(num_logprobs)))
    poor = TokenLogprobs(0.0, (60, 61), (-1.0, -2.0))
    search.advance([ends_first, poor, poor, poor])
    assert [(branch.parent, branch.node.token) for branch in search.live] == [(0, token) for token in range(7, 11)]
    assert [each.stop_token_id for each in search.hypotheses] == [0, 1, 2, 3]


def test_of_equal_offers_the_earlier_beams_come_first() -> None:
    search = search_of(3)
    search.advance([TokenLogprobs(0.0, (7, 9, 8), (-1.0, -1.0, -1.0))])
    assert [branch.node.token for branch in search.live] == [7, 9, 8]
    candidates = TokenLogprobs(0.0, (6, 5), (-2.0, -2.0))
    live = search.advance([candidates, candidates, candidates])
    assert [(branch.parent, branch.node.token) for branch in live] == [(0, 6), (0, 5), (1, 6)]
