"""The prefill budget: how many prefill tokens a step may carry while others wait for their next token (chunked
prefill).

A long prompt must not stall the tokens of running requests: a step with decodes should take less than twice as long as
without prefill. Both times are measured, not configured, as they depend on model, machine and context: a moving average
of the duration of decode-only steps, and the seconds each prefill token adds. What small chunks cost says little about
large ones (a GPU computes some hundred tokens for nothing beside its weights, and no more), but a chunk k times as
large makes a step at most k times as long: so the first chunks are small, and grow by what that leaves. The result only
shapes the chunks; tokens do not depend on it.
"""

from __future__ import annotations


class PrefillBudget:
    """Estimates from measured steps.

    Args:
        stretch: how many times longer than without prefill a step with decodes may get. Below 2, to leave room for
            errors of the estimate.
        crowd: one prompt never stretches a step further, but several do, by this times their number over that of the
            decodes: when a batch arrives at once, the few who are served already wait for the many, as every step with
            a part of the batch costs all of them more than late tokens cost these.
        min_chunk: prefill tokens a step always gets, so that prefill never stops.
        first_chunk: prefill tokens beside decodes before anything is measured.
        probe_every: after so many steps of decodes with prefill one step goes without prefill, to measure decode
            alone again (more decodes and longer contexts make it slower).
    """

    def __init__(
        self,
        *,
        stretch: float = 1.7,
        crowd: float = 16.0,
        min_chunk: int = 4,
        first_chunk: int = 16,
        probe_every: int = 32,
    ) -> None:
        self._stretch = stretch
        self._crowd = crowd
        self._min_chunk = min_chunk
        self._unstretched = first_chunk / stretch
        """Tokens that would not make a step longer at all, judged by the chunks seen lately."""
        self._probe_every = probe_every
        self._mixed_steps = probe_every  # the first mixed step is preceded by a probe
        self._decode_seconds: float | None = None
        """Estimated duration of a step without prefill; None before the first measurement."""
        # Ratio of decayed sums: large chunks say more about the cost of a token than small ones, and weigh more.
        self._prefill_seconds = 0.0
        self._prefill_tokens = 0.0

    @property
    def seconds_per_token(self) -> float | None:
        """Estimated seconds a prefill token adds; None before the first measurement."""
        return self._prefill_seconds / self._prefill_tokens if self._prefill_tokens else None

    def allowance(self, num_decodes: int, num_prefills: int = 1) -> int | None:
        """Prefill tokens the next step may carry beside ``num_decodes`` decodes; None without any: no bound.

        Call it only when there is prefill to do: for ``num_prefills`` requests. 0 asks for a step without prefill, to
        measure it.
        """
        if num_decodes == 0:
            return None
        if self._mixed_steps >= self._probe_every:
            self._mixed_steps = 0
            return 0
        self._mixed_steps += 1
        room = (self._stretch - 1.0) * max(1.0, self._crowd * (num_prefills - 1) / num_decodes)
        tokens = self._unstretched * (1.0 + room)
        cost = self.seconds_per_token
        if self._decode_seconds is not None and cost:
            tokens = min(tokens, room * self._decode_seconds / cost)
        return max(self._min_chunk, int(tokens))

    def observe(self, num_decodes: int, prefill_tokens: int, seconds: float) -> None:
        """A step with so many decodes and prefill tokens took ``seconds``."""
        decode, cost = self._decode_seconds, self.seconds_per_token
        if prefill_tokens == 0:
            if num_decodes == 0:
                return
            self._mixed_steps = 0
            if decode is None:
                self._decode_seconds = seconds
            else:  # An outlier counts as no more than a doubling; a lasting change gets through in a few steps.
                self._decode_seconds = decode + 0.25 * (min(seconds, 2.0 * decode) - decode)
            return
        if decode is not None:
            stretched = max(1.0, seconds / decode) if decode else 1.0
            # Neither an outlier nor the small end of a prompt undoes at once what larger chunks have shown.
            self._unstretched = max(prefill_tokens / stretched, 0.9 * self._unstretched)
        if num_decodes == 0:
            excess = seconds  # reading the weights included: errs on the side of small chunks
        elif decode is not None:
            excess = max(seconds - decode, 0.0)
        else:
            return
        if cost:  # again against outliers
            excess = min(excess, max(4.0 * cost * prefill_tokens, decode or 0.0))
        self._prefill_seconds = 0.8 * self._prefill_seconds + excess
        self._prefill_tokens = 0.8 * self._prefill_tokens + prefill_tokens
