"""The prefill budget: how many prefill tokens a step may carry while others wait for their next token (chunked
prefill).

A long prompt must not stall the tokens of running requests: a step with decodes should take less than twice as long as
without prefill. What steps cost is measured, not configured, as it depends on model, machine and context
(:mod:`blade_llm.scheduling.step_cost`). What small chunks cost says little about large ones (a GPU computes some
hundred tokens for nothing beside its weights, and no more), but a chunk k times as large makes a step at most k times
as long: so the first chunks are small, and grow by what that leaves. The result only shapes the chunks; tokens do not
depend on it.

Prefill always gets on. Where its fixed part alone takes the room there is, chunks are as large as makes them worth that
part, and steps without prefill between them keep the mean time between tokens where it should be.
"""

from __future__ import annotations

from typing import Final

from blade_llm.scheduling.step_cost import StepCost

CPU_MIN_CHUNK: Final = 8
"""Prefill tokens. On a CPU each costs time from the first."""
GPU_MIN_CHUNK: Final = 256
"""Prefill tokens. A GPU that reads its weights for a step computes about so many meanwhile."""
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
    """

    def __init__(
        self,
        *,
        stretch: float = 1.7,
        crowd: float = 16.0,
        min_chunk: int = CPU_MIN_CHUNK,
        first_chunk: int = 16,
        probe_every: int = 32,
    ) -> None:
        self.cost = StepCost()
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

    def allowance(self, num_decodes: int, num_prefills: int = 1) -> int | None:
        """Prefill tokens the next step may carry beside ``num_decodes`` decodes; None without any: no bound.

        Call it only when there is prefill to do: for ``num_prefills`` requests. 0 asks for a step without prefill, to
        measure it, or to let the decodes catch up.
        """
        if num_decodes == 0:
            return None
        if self._pauses >= 1.0 or self._mixed_steps >= self._probe_every:
            self._pauses = max(0.0, self._pauses - 1.0)
            self._mixed_steps = 0
            return 0
        self._mixed_steps += 1
        self._room = (self._stretch - 1.0) * max(1.0, self._crowd * (num_prefills - 1) / num_decodes)
        tokens = max(self._min_chunk, int(self._affordable()))
        return max(1, tokens // 2) if self.cost.uniform else tokens

    def observe(self, num_decodes: int, prefill_tokens: int, seconds: float) -> None:
        """A step with so many decodes and prefill tokens took ``seconds``."""
        cost = self.cost
        if prefill_tokens == 0:
            if num_decodes:
                self._mixed_steps = 0
                cost.observe_decode(seconds)
            return
        if cost.decode is not None:
            unstretched = cost.decode + cost.fixed
            stretched = max(1.0, seconds / unstretched) if unstretched else 1.0
            # Neither an outlier nor the small end of a prompt undoes at once what larger chunks have shown.
            self._unstretched = max(prefill_tokens / stretched, 0.9 * self._unstretched)
        if num_decodes:
            cost.observe_mixed(prefill_tokens, seconds)
            self._pause_for(prefill_tokens)
        else:
            cost.observe_prefill(prefill_tokens, seconds)

    def _affordable(self) -> float:
        """Prefill tokens that fit into the room, or that make the fixed part of their cost worth it."""
        cost, room = self.cost, self._room
        decode, fixed, per_token = cost.decode, cost.fixed, cost.per_token
        if decode is None:
            return self._unstretched * (1.0 + room)
        left = room * decode - fixed
        worth = min(fixed, 4 * self._min_chunk * per_token) if per_token else fixed
        seconds = max(left, worth)
        shortest = decode + fixed
        tokens = self._unstretched * ((shortest + seconds) / shortest if shortest else 1.0 + room)
        return min(tokens, seconds / per_token) if per_token else tokens

    def _pause_for(self, tokens: int) -> None:
        """Make the fixed part of a step with ``tokens`` prefill tokens good, where it took more room than there is."""
        cost = self.cost
        room = self._room * (cost.decode or 0.0)
        over = min(cost.added(tokens) - room, 2.0 * cost.fixed)
        if room and over > 0.0:
            self._pauses = min(self._pauses + over / room, _MOST_PAUSES)
