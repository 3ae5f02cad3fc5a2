"""Lookahead decoding as a drafter: guesses from the n-grams that the window and the text bring, and whether a step is
worth them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from blade_llm.config import SpeculativeConfig
from blade_llm.decoding.acceptance import AcceptanceRate
from blade_llm.decoding.lookahead.guesses import guess_tree
from blade_llm.decoding.lookahead.pool import NgramPool
from blade_llm.decoding.lookahead.window import JacobiWindow
from blade_llm.decoding.step_seconds import StepSeconds
from blade_llm.decoding.tally import Pause, Tally
from blade_llm.scheduling.drafting import Draft, StepRoom, StepTokens
from blade_llm.scheduling.plan import DraftTree
from blade_llm.scheduling.request import Request
from blade_protocol.state import SpeculationCounts

_PRIOR: Final = 0.45
"""The share of guesses that is taken to be accepted at first: what a chat model's texts have about."""
_OWN_WEIGHT: Final = 4.0
"""Observations of a request that count as much as what is known of all others."""
_READ_A_STEP: Final = 128
"""Tokens of texts whose n-grams are added in one step: about a fifth of a millisecond."""
_READ: Final = 2048
"""Tokens before a request's last one whose n-grams are added."""
_SMOOTHING: Final = 0.1


class _Lookahead:
    """What is known of one request."""

    __slots__ = ("last", "pool", "rate", "read", "window")

    def __init__(self, config: SpeculativeConfig, text: Sequence[int], rate: AcceptanceRate) -> None:
        self.pool = NgramPool(config.look_ahead_gram_size, config.guess_set_size)
        self.window = JacobiWindow(config.look_ahead_window_size, config.look_ahead_gram_size, text)
        self.rate = rate
        self.read = max(0, len(text) - _READ)
        """Tokens of the text that the pool knows."""
        self.last = text[-1]
        """The token that the last tree goes on from."""

    def read_on(self, text: Sequence[int], most: int) -> int:
        """Add n-grams of the text that end in its next tokens, ``most`` of them; returns how many."""
        end = min(len(text), self.read + most)
        size, start = self.pool.size, self.read
        for index in range(max(start, size - 1), end):
            self.pool.add(text[index - size + 1], tuple(text[index - size + 2 : index + 1]))
        self.read = end
        return end - start


class LookaheadDrafter:
    """Implements :class:`blade_llm.scheduling.drafting.Drafter`."""

    past_end = True

    def __init__(self, config: SpeculativeConfig, seconds: StepSeconds, *, deterministic: bool = False) -> None:
        """``deterministic``: verify one branch, whose tokens are where ordinary decoding has them: sums over other
        branches run in another order, and round otherwise."""
        self._config = config
        self._one_chain = deterministic
        self._seconds = seconds
        self._most_guesses = config.guess_set_size * (config.look_ahead_gram_size - 1)
        self._requests: dict[Request, _Lookahead] = {}
        self._rate = AcceptanceRate(_PRIOR)
        self._trials = 1.0
        self._tokens = float(config.look_ahead_tokens)
        """Draft tokens of a tree, on average."""
        self._depth = 2 * config.look_ahead_gram_size
        self._tally = Tally(self._depth)
        self._pause = Pause()

    @property
    def counts(self) -> SpeculationCounts:
        """What was drafted and accepted since the start."""
        return self._tally.counts

    def active(self, num_running: int) -> bool:
        """See :class:`~blade_llm.scheduling.drafting.Drafter`."""
        limit = self._config.disable_above_batch
        if limit is not None and num_running > limit:
            return False
        return self._pause.over()

    def propose(
        self, requests: Sequence[Request], rooms: Sequence[int], most: StepRoom, other_tokens: int
    ) -> Sequence[Draft]:
        """See :class:`~blade_llm.scheduling.drafting.Drafter`."""
        states = [self._state(request) for request in requests]
        chosen = self._chosen(states, other_tokens)
        drafts = [Draft(0)] * len(requests)
        tokens, sampled = most
        unread = _READ_A_STEP
        for index in chosen:
            unread -= states[index].read_on(requests[index].token_ids, unread)
            draft = self._draft(requests[index], states[index], min(tokens, rooms[index]), sampled)
            if draft.tree is not None:
                tokens -= draft.length
                sampled -= draft.tree.num_sampled - 1
                self._tokens += _SMOOTHING * (draft.length - self._tokens)
            drafts[index] = draft
        if not chosen:
            self._trials += 1  # so that it is tried again
        self._pause.proposed(bool(chosen))
        return drafts

    def observe(self, request: Request, drafted: int, accepted: int, window: Sequence[int] = ()) -> None:
        """See :class:`~blade_llm.scheduling.drafting.Drafter`."""
        if drafted:
            self._tally.observe(drafted, accepted)
        state = self._requests.get(request)
        if state is None:
            return
        if drafted or state.window.full:  # before, there was nothing to guess with
            for rate in (state.rate, self._rate):
                rate.observe(accepted, True)
            self._trials += accepted + 1
        if window:
            for first, rest in state.window.advance(state.last, window):
                state.pool.add(first, rest)

    def observe_step(self, step: StepTokens, seconds: float, host: float) -> None:
        """See :class:`~blade_llm.scheduling.drafting.Drafter`."""
        if step.decodes and not step.prefill_tokens:
            self._seconds.observe(step.decodes + step.draft_tokens, step.decodes, 0, seconds, host)

    def failed(self) -> None:
        """There is no draft model that could."""

    def forget(self, request: Request) -> None:
        """See :class:`~blade_llm.scheduling.drafting.Drafter`."""
        self._requests.pop(request, None)

    def _state(self, request: Request) -> _Lookahead:
        state = self._requests.get(request)
        if state is None:
            rate = AcceptanceRate(self._rate.mean, _OWN_WEIGHT)
            state = self._requests[request] = _Lookahead(self._config, request.token_ids, rate)
        return state

    def _chosen(self, states: Sequence[_Lookahead], other_tokens: int) -> list[int]:
        """The decodes that get a tree: those of which most is expected, as many as make tokens come soonest."""
        bonus = self._rate.upper(self._trials) - self._rate.mean
        if len(states) == 1:
            brought = 1.0 + self._gain(states[0].rate.mean + bonus)
            seconds, base = self._seconds, 1 + other_tokens
            return [0] if brought * seconds.plain(base) > seconds.target_of(base + self._tokens) else []
        gains = np.array([self._gain(state.rate.mean + bonus) for state in states])
        order = np.argsort(-gains, kind="stable")
        decodes = len(states)
        base = decodes + other_tokens
        trees = np.arange(decodes + 1)
        tokens = decodes + np.concatenate(([0.0], gains[order].cumsum()))
        spent = self._seconds.target(decodes, base + trees * self._tokens)
        spent[0] = self._seconds.plain(base)
        chosen: list[int] = order[: int((tokens / spent).argmax())].tolist()
        return chosen

    def _gain(self, rate: float) -> float:
        """Guesses that are accepted in a row, on average, where each is with the probability ``rate``."""
        rate = min(max(rate, 0.0), 0.98)
        return rate * (1.0 - rate**self._depth) / (1.0 - rate)

    def _draft(self, request: Request, state: _Lookahead, room: int, sampled: int) -> Draft:
        """Guesses and the window for one decode, in at most ``room`` tokens of which ``sampled`` are sampled after;
        the window as a whole or not at all."""
        last = state.last = request.token_ids[-1]
        size, ends = state.window.size
        fits = size <= room and ends <= sampled
        if fits:
            room, sampled = room - size, sampled - ends
        alone = self._one_chain or request.grammar is not None or _needs_all_tokens(request)
        guesses = guess_tree(state.pool, last, min(room, sampled, self._most_guesses), one_chain=alone)
        tokens, parents, count = guesses.tokens, guesses.parents, len(guesses.tokens)
        window_ends: list[int] = []
        if fits:
            of_window, window_parents, window_ends = state.window.draft_tokens(count)
            tokens, parents = tokens + of_window, parents + window_parents
        return Draft(len(tokens), tokens, tree=DraftTree(parents, count, window_ends)) if tokens else Draft(0)


def _needs_all_tokens(request: Request) -> bool:
    """Whether what is sampled depends on all tokens before it, which the tables hold for a single branch."""
    sampling = request.sampling
    if sampling.bad_words_token_ids:
        return True
    return sampling.repetition_penalty != 1.0 or bool(sampling.presence_penalty or sampling.frequency_penalty)
