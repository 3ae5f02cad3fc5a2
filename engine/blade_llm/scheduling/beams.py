"""Beam search: which continuations live on, and which answers are complete. Only arithmetic; rows and blocks are
elsewhere.

In each step every live beam offers its most likely next tokens, and of all offers the best by cumulative
log-probability go on. One that ends with a stop token is a complete answer, if no more than ``width - 1`` offers beat
it; its score is the sum of its log-probabilities divided by its length, the stop token included, to the power of the
length penalty. The rules are those of transformers, so that both find the same answers.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs
from blade_llm.scheduling.plan import FinishReason

_MOST_OFFERS: Final = 32
"""For each beam: a request may name thousands of stop tokens."""


class Node(NamedTuple):
    """The last token of a sequence; the tokens before it are shared with others."""

    token: int
    logprobs: TokenLogprobs
    before: Node | None


class Branch(NamedTuple):
    """A beam of the next step."""

    parent: int
    """Which of the beams of the step before it goes on from."""
    score: float
    """Cumulative log-probability."""
    node: Node


class Hypothesis(NamedTuple):
    """A complete answer."""

    score: float
    """Divided by the length penalty."""
    node: Node | None
    """The last token of its text."""
    reason: FinishReason
    stop_token_id: int | None


_Offer = tuple[float, int, int, float]
"""Cumulative log-probability, beam, token, its log-probability."""


class BeamSearch:
    """One prompt's search.

    Args:
        stop_ids: tokens that end an answer and are no part of it.
        max_length: most tokens of an answer.
    """

    def __init__(self, sampling: SamplingParams, stop_ids: frozenset[int], max_length: int) -> None:
        self.width = sampling.beam_width
        self._sampling = sampling
        self._stop_ids = stop_ids
        self._max_length = max_length
        self._offers = min(max(2, 1 + len(stop_ids)), _MOST_OFFERS) * self.width
        """So many of the best continuations leave at least ``width`` that do not end; with fewer the search goes on."""
        self.row_sampling = msgspec.structs.replace(
            sampling,
            temperature=0.0,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            min_tokens=0,
            # All may come from one row, and of those no more go on, whatever ends between them.
            logprobs=max(min(self._offers, self.width + len(stop_ids)), sampling.logprobs or 0),
            prompt_logprobs=None,
        )
        """What a beam's row asks of the runner: the likeliest tokens, and nothing changed."""
        self.restart()

    def restart(self) -> None:
        """Forget everything but the prompt."""
        self.length = 0
        """Tokens of each live beam."""
        self.live = [Branch(0, 0.0, Node(-1, TokenLogprobs(0.0), None))]
        self.hypotheses: list[Hypothesis] = []
        """The best complete answers, best first."""

    def advance(self, rows: list[TokenLogprobs]) -> list[Branch]:
        """Take in what follows each live beam, in order. Returns the next live beams; none: the search is over."""
        offers = self._best_offers(rows)
        self.length += 1
        at_end = self.length >= self._max_length
        live: list[Branch] = []
        for rank, (score, parent, token, logprob) in enumerate(offers):
            if rank >= self.width and (at_end or len(live) == self.width):
                break  # no more is looked at than is needed, of what may be thousands
            stops = token in self._stop_ids
            if not stops and not at_end:
                if len(live) < self.width:
                    live.append(Branch(parent, score, self._node(parent, token, logprob, rows)))
            elif rank < self.width:
                node = self._last(parent) if stops else self._node(parent, token, logprob, rows)
                reason: FinishReason = "stop" if stops else "length"
                self._complete(Hypothesis(self._ranked(score), node, reason, token if stops else None))
        self.live = live
        if len(self.hypotheses) == self.width and live:
            worst = self.hypotheses[-1].score
            if self._sampling.early_stopping or self._ranked(live[0].score) <= worst:
                return []
        return live

    def answer(self, hypothesis: Hypothesis) -> tuple[list[int], list[TokenLogprobs] | None]:
        """Tokens of an answer, and their log-probabilities if asked for."""
        nodes = nodes_of(hypothesis.node)
        wanted = self._sampling.logprobs is not None
        return [node.token for node in nodes], [node.logprobs for node in nodes] if wanted else None

    def _best_offers(self, rows: list[TokenLogprobs]) -> Iterator[_Offer]:
        """The best of all, best first; of equal ones the earlier beam's, and then in the row's order."""
        ends: frozenset[int] = frozenset() if self.length >= self._sampling.min_tokens else self._stop_ids
        offers = [
            _offers_of(parent, beam.score, row, ends)
            for parent, (beam, row) in enumerate(zip(self.live, rows, strict=True))
        ]
        return islice(heapq.merge(*offers, key=lambda offer: -offer[0]), self._offers)

    def _ranked(self, score: float) -> float:
        return score / math.pow(self.length, self._sampling.length_penalty)

    def _complete(self, hypothesis: Hypothesis) -> None:
        self.hypotheses.append(hypothesis)
        self.hypotheses.sort(key=lambda each: -each.score)
        del self.hypotheses[self.width :]

    def _last(self, parent: int) -> Node | None:
        return self.live[parent].node if self.length > 1 else None

    def _node(self, parent: int, token: int, logprob: float, rows: list[TokenLogprobs]) -> Node:
        count, row = self._sampling.logprobs or 0, rows[parent]
        return Node(token, TokenLogprobs(logprob, row.token_ids[:count], row.logprobs[:count]), self._last(parent))


def _offers_of(parent: int, score: float, row: TokenLogprobs, forbidden: frozenset[int]) -> Iterator[_Offer]:
    """``row`` has its tokens best first."""
    for token, logprob in zip(row.token_ids, row.logprobs, strict=True):
        if token not in forbidden:
            yield score + logprob, parent, token, logprob


def nodes_of(node: Node | None) -> list[Node]:
    """The sequence that ends with ``node``, in order."""
    nodes = []
    while node is not None:
        nodes.append(node)
        node = node.before
    return nodes[::-1]
