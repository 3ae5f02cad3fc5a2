"""Beam search: which continuations live on, and which hypotheses are complete. Only arithmetic; the slots and blocks
are those of :mod:`blade_llm.scheduling.beams.group`.

In each step the most likely next tokens of every live beam are its candidates, and of all candidates the best by
cumulative log-probability go on. One that ends with a stop token is a complete hypothesis, if no more than
``width - 1`` candidates beat it; its score is the sum of its log-probabilities divided by its length, the stop token
included, to the power of the length penalty. The rules are those of transformers, so that both find the same
hypotheses.
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

_MAX_CANDIDATES: Final = 32
"""For each beam: a request may name thousands of stop tokens."""


class Node(NamedTuple):
    """The last token of a sequence; the tokens before it are shared with others."""

    token: int
    logprobs: TokenLogprobs
    before: Node | None


class Branch(NamedTuple):
    """A beam of the next step."""

    parent: int
    """Index of the beam of the step before that it continues."""
    score: float
    """Cumulative log-probability."""
    node: Node


class Hypothesis(NamedTuple):
    """A complete output."""

    score: float
    """Divided by the length penalty."""
    node: Node | None
    """The last token of its text."""
    reason: FinishReason
    stop_token_id: int | None


_Candidate = tuple[float, int, int, float]
"""Cumulative log-probability, beam, token, its log-probability."""


class BeamSearch:
    """The beam search of one prompt.

    Args:
        stop_ids: tokens that end an output and are no part of it.
        max_length: most tokens of an output.
    """

    def __init__(self, sampling: SamplingParams, stop_ids: frozenset[int], max_length: int) -> None:
        self.width = sampling.beam_width
        self._sampling = sampling
        self._stop_ids = stop_ids
        self._max_length = max_length
        self._candidates = min(max(2, 1 + len(stop_ids)), _MAX_CANDIDATES) * self.width
        """The number of candidates: so many leave at least ``width`` that do not end; with fewer the search goes on."""
        self.slot_sampling = msgspec.structs.replace(
            sampling,
            temperature=0.0,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            min_tokens=0,
            # All may come from one beam, and of those no more go on, whatever ends between them.
            logprobs=max(min(self._candidates, self.width + len(stop_ids)), sampling.logprobs or 0),
            prompt_logprobs=None,
        )
        """The parameters of a beam's slot: the likeliest tokens, and nothing changed."""
        self.restart()

    def restart(self) -> None:
        """Forget everything but the prompt."""
        self.length = 0
        """Tokens of each live beam."""
        self.live = [Branch(0, 0.0, Node(-1, TokenLogprobs(0.0), None))]
        self.hypotheses: list[Hypothesis] = []
        """The best complete ones, best first."""

    def advance(self, beams: list[TokenLogprobs]) -> list[Branch]:
        """Advance by the candidates of each live beam, in order. Returns the next live beams; none: the search is
        over."""
        candidates = self._best_candidates(beams)
        self.length += 1
        at_end = self.length >= self._max_length
        live: list[Branch] = []
        for rank, (score, parent, token, logprob) in enumerate(candidates):
            if rank >= self.width and (at_end or len(live) == self.width):
                break  # read no more candidates than are needed: there may be thousands
            stops = token in self._stop_ids
            if not stops and not at_end:
                if len(live) < self.width:
                    live.append(Branch(parent, score, self._node(parent, token, logprob, beams)))
            elif rank < self.width:
                node = self._last(parent) if stops else self._node(parent, token, logprob, beams)
                reason: FinishReason = "stop" if stops else "length"
                self._complete(Hypothesis(self._ranked(score), node, reason, token if stops else None))
        self.live = live
        if len(self.hypotheses) == self.width and live:
            worst = self.hypotheses[-1].score
            if self._sampling.early_stopping or self._ranked(live[0].score) <= worst:
                return []
        return live

    def tokens_of(self, hypothesis: Hypothesis) -> tuple[list[int], list[TokenLogprobs] | None]:
        """Tokens of a hypothesis, and their log-probabilities if the request wants them."""
        nodes = nodes_of(hypothesis.node)
        wanted = self._sampling.logprobs is not None
        return [node.token for node in nodes], [node.logprobs for node in nodes] if wanted else None

    def _best_candidates(self, beams: list[TokenLogprobs]) -> Iterator[_Candidate]:
        """The best of all, best first; of equal ones the earlier beam's, and then in the beam's order."""
        ends: frozenset[int] = frozenset() if self.length >= self._sampling.min_tokens else self._stop_ids
        candidates = [
            _candidates_of(parent, beam.score, candidates, ends)
            for parent, (beam, candidates) in enumerate(zip(self.live, beams, strict=True))
        ]
        return islice(heapq.merge(*candidates, key=lambda candidate: -candidate[0]), self._candidates)

    def _ranked(self, score: float) -> float:
        return score / math.pow(self.length, self._sampling.length_penalty)

    def _complete(self, hypothesis: Hypothesis) -> None:
        self.hypotheses.append(hypothesis)
        self.hypotheses.sort(key=lambda each: -each.score)
        del self.hypotheses[self.width :]

    def _last(self, parent: int) -> Node | None:
        return self.live[parent].node if self.length > 1 else None

    def _node(self, parent: int, token: int, logprob: float, beams: list[TokenLogprobs]) -> Node:
        count, top = self._sampling.logprobs or 0, beams[parent]
        return Node(token, TokenLogprobs(logprob, top.token_ids[:count], top.logprobs[:count]), self._last(parent))


def _candidates_of(parent: int, score: float, top: TokenLogprobs, forbidden: frozenset[int]) -> Iterator[_Candidate]:
    """The candidates of one beam; ``top`` has its tokens best first."""
    for token, logprob in zip(top.token_ids, top.logprobs, strict=True):
        if token not in forbidden:
            yield score + logprob, parent, token, logprob


def nodes_of(node: Node | None) -> list[Node]:
    """The sequence that ends with ``node``, in order."""
    nodes = []
    while node is not None:
        nodes.append(node)
        node = node.before
    return nodes[::-1]
