"""The prefill budget: how many prefill tokens a step may carry while others wait for their next token (chunked
prefill).

A long prompt must not stall the tokens of running requests: a step with decodes should take less than twice as long as
without prefill. What steps cost is measured, not configured, as it depends on model, machine and context
(:mod:`blade_llm.scheduling.budget.step_cost`). What small chunks cost says little about large ones (a GPU computes some
hundred tokens for nothing beside its weights, and no more), but a chunk k times as large makes a step at most k times
as long: so the first chunks are small, and grow by what that leaves. The result only shapes the chunks; tokens do not
depend on it.

Prefill always gets on. Where its fixed part alone takes the room there is, chunks are as large as makes them worth that
part, and steps without prefill between them keep the mean time between tokens where it should be.

No step is longer than makes those who come meanwhile wait for it, with or without decodes: they could not be served
within it.

Mixed steps up to some number of tokens may be CUDA graphs. These have a cost of their own, without the launches, which
is that of the graph's size, so a chunk fills its graph; and a larger chunk, or one between graphs that lie far apart,
which both have to be launched, is made where it fits beside the launches.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from blade_llm.scheduling.budget.step_cost import FILLED, StepCost, replayed_size

CPU_MIN_CHUNK: Final = 8
"""Prefill tokens. On a CPU each costs time from the first."""
GPU_MIN_CHUNK: Final = 256
"""Prefill tokens. A GPU that reads its weights for a step computes about so many meanwhile."""
_GRAPH_PART: Final = 4
"""A chunk that replays a graph has at least this part of the tokens that one that is launched has."""
_MOST_DECODES: Final = 4
"""A step may take so many times one of decodes: where reading the weights takes long, small chunks are dear."""
_MOST_CHUNKS: Final = 8
"""It may have so many times the least prefill tokens, whatever they seem to cost: reading the weights is in that."""
_MOST_PAUSES: Final = 8
"""Steps without prefill after one with it, at most."""


class PrefillBudget:
    """Estimates from measured steps.

    Args:
        stretch: how many times longer than without prefill a step with decodes may get. Below 2, to leave room for
            errors of the estimate.
        crowd: one prompt never stretches a step further, but several do, by this times their number over that of the
            decodes: when a batch arrives at once, the few who are served already wait for the many, as every step with
            a part of the batch costs all of them more than late tokens cost these.
        min_chunk: prefill tokens a step gets, whatever they cost, so that prefill never stops. Only when chunks of one
            size leave open what of their cost is fixed, one is half as large.
        first_chunk: prefill tokens beside decodes before anything is measured.
        probe_every: after so many steps of decodes with prefill one step goes without prefill, to measure decode
            alone again (more decodes and longer contexts make it slower).
        most_seconds: of a step, about, once prefill has been measured; more where decodes take long.
        graph_sizes: numbers of tokens, ascending, for which mixed steps are CUDA graphs.
    """

    def __init__(
        self,
        *,
        stretch: float = 1.7,
        crowd: float = 16.0,
        min_chunk: int = CPU_MIN_CHUNK,
        first_chunk: int = 16,
        probe_every: int = 32,
        most_seconds: float = 0.75,
        graph_sizes: Sequence[int] = (),
    ) -> None:
        self.cost = StepCost()
        """Of mixed steps that are launched."""
        self.graph_cost = StepCost()
        """Of those that replay a graph; its tokens include the padding."""
        self._most_seconds = most_seconds
        self._graph_sizes = tuple(graph_sizes)
        self._largest_graph = max(graph_sizes, default=0)
        self._stretch = stretch
        self._crowd = crowd
        self._min_chunk = min_chunk
        self._unstretched = first_chunk / stretch
        """Tokens that would not make a step with prefill longer at all, judged by the chunks seen lately."""
        self._probe_every = probe_every
        self._mixed_steps = probe_every  # the first mixed step is preceded by a probe
        self._room = stretch - 1.0
        """By what part of its time prefill may lengthen a step of decodes; as last computed."""
        self._pauses = 0.0
        """Steps without prefill that are due."""

    def allowance(self, num_decodes: int, num_prefills: int = 1, *, forced: int = 0) -> int | None:
        """Prefill tokens the next step may carry beside ``num_decodes`` decodes; None: no bound.

        Call it only when there is prefill to do: for ``num_prefills`` requests. 0 asks for a step without prefill, to
        measure it, or to let the decodes catch up. ``forced``: prefill tokens that the step has already.
        """
        if num_decodes == 0:
            return self._most_tokens(self.cost, 0.0, alone=self.cost.alone)
        if self._pauses >= 1.0 or self._mixed_steps >= self._probe_every:
            self._pauses = max(0.0, self._pauses - 1.0)
            self._mixed_steps = 0
            return 0
        self._mixed_steps += 1
        self._room = (self._stretch - 1.0) * max(1.0, self._crowd * (num_prefills - 1) / num_decodes)
        launched = int(self._affordable(self.cost))
        taken = num_decodes + forced
        most = self._largest_graph - taken
        if most < self._min_chunk // _GRAPH_PART or (launched > most and self._fits_launched()):
            return max(self._launched(), most + 1) if self.cost.uniform else self._launched()
        # Nothing fixed has to be made worth it: once their cost is known, chunks need not be as large.
        least = self._min_chunk if self.graph_cost.per_token is None else self._min_chunk // _GRAPH_PART
        tokens = min(max(least, int(self._affordable(self.graph_cost)) - forced), most)
        return self._fill(taken, max(1, tokens // 2) if self.graph_cost.uniform else tokens)

    def observe(self, num_decodes: int, prefill_tokens: int, seconds: float, *, launched: bool = False) -> None:
        """A step with so many decodes and prefill tokens took ``seconds``. ``launched``: also where a graph held it."""
        if prefill_tokens == 0:
            if num_decodes:
                self._mixed_steps = 0
                self.cost.observe_decode(seconds)
                self.graph_cost.observe_decode(seconds)
            return
        cost = self.cost
        size = None if launched else replayed_size(self._graph_sizes, num_decodes + prefill_tokens)
        if size is not None:
            cost = self.graph_cost
            prefill_tokens = size - num_decodes
        if cost.decode is not None:
            unstretched = cost.decode + cost.fixed
            stretched = max(1.0, seconds / unstretched) if unstretched else 1.0
            # Neither an outlier nor the small end of a prompt undoes at once what larger chunks have shown.
            self._unstretched = max(prefill_tokens / stretched, 0.9 * self._unstretched)
        if num_decodes:
            cost.observe_mixed(prefill_tokens, seconds)
            self._pause_for(cost.added(prefill_tokens), cost.fixed)
        else:
            cost.observe_prefill(prefill_tokens, seconds)

    def _per_token(self, cost: StepCost) -> float | None:
        """Seconds; those of the other kind of step until some of this kind were measured."""
        if cost.per_token is not None:
            return cost.per_token
        return self.graph_cost.per_token if cost is self.cost else self.cost.per_token

    def _most_tokens(self, cost: StepCost, shortest: float, alone: float = 0.0) -> int | None:
        """Prefill tokens after which a step that takes ``shortest`` seconds without is too long; None: unknown.

        ``alone``: the least seconds that a token counts as, where there are no decodes.
        """
        per_token = max(self._per_token(cost) or 0.0, alone)
        if not per_token:  # small chunks that cost nothing, or the less the larger they were, bound no large one
            per_token = max(self.cost.dearest, self.graph_cost.dearest)
        if not per_token:
            return None
        seconds = max(self._most_seconds, _MOST_DECODES * (cost.decode or 0.0))
        return max(_MOST_CHUNKS * self._min_chunk, int((seconds - shortest) / per_token))

    def _fill(self, taken: int, tokens: int) -> int:
        """About ``tokens`` of prefill, so many that no graph is padded; else as many as are launched. ``taken``: the
        step's other tokens."""
        below = bisect_right(self._graph_sizes, taken + tokens)
        fitting = self._graph_sizes[below - 1] - taken if below else 0
        if fitting >= FILLED * tokens:
            return fitting
        if (size := replayed_size(self._graph_sizes, taken + tokens)) is not None:
            return size - taken
        if fitting * _GRAPH_PART >= tokens:
            return fitting
        padded = math.ceil(FILLED * self._graph_sizes[below])  # as many as the runner would fill up
        return max(fitting, min(self._launched(), padded - 1 - taken))

    def _launched(self) -> int:
        """Prefill tokens of a step that is launched."""
        tokens = max(self._min_chunk, int(self._affordable(self.cost)))
        return max(1, tokens // 2) if self.cost.uniform else tokens

    def _fits_launched(self) -> bool:
        """Whether launches leave room for tokens."""
        return self.cost.decode is not None and self._room * self.cost.decode > self.cost.fixed

    def _affordable(self, cost: StepCost) -> float:
        """Prefill tokens that fit into the room, or that make the fixed part of their cost worth it."""
        room, decode, fixed = self._room, cost.decode, cost.fixed
        per_token = self._per_token(cost)
        if decode is None:
            return self._unstretched * (1.0 + room)
        left = room * decode - fixed
        worth = min(fixed, 4 * self._min_chunk * per_token) if per_token else fixed
        seconds = max(left, worth)
        shortest = decode + fixed
        tokens = self._unstretched * ((shortest + seconds) / shortest if shortest else 1.0 + room)
        if (most := self._most_tokens(cost, shortest)) is not None:
            tokens = min(tokens, most)
        return min(tokens, seconds / per_token) if per_token else tokens

    def _pause_for(self, added: float, fixed: float) -> None:
        """Make the fixed part of what prefill added to a step good, where it took more room than there is."""
        room = self._room * (self.cost.decode or 0.0)
        over = min(added - room, 2.0 * fixed)
        if room and over > 0.0:
            self._pauses = min(self._pauses + over / room, _MOST_PAUSES)
