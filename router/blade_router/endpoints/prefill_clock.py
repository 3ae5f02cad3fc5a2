"""What this router has learned of one engine's prefill: how fast it is, and how long a prompt sent now would wait.

Engines compute prompts about one after another. Of streams the first bytes say when each was computed, so what lies
between two of them is one prompt's work. A response in one piece comes when its decoding is over as well: there the
queue is what was sent, at the known rate, and how much later than expected a response comes moves all that waits.
"""

from typing import Final

DEFAULT_BLOCK_SECONDS: Final = 0.002
"""Prefill of a block of an engine when none has answered yet."""
LEAST_BLOCK_SECONDS: Final = 1e-5
"""No engine is faster: 6 million tokens a second."""
RATE_BLOCKS: Final = 2.0
"""Uncached blocks from which on a prompt says how fast the engine is; the time of others says what does not depend on
the prompt."""
STEADY: Final = 0.05
"""Weight of a new sample, after the first few."""
UP: Final = 0.4
"""Weight of samples above the estimate, relative to those below: what makes a prompt slow is often something else."""
CLIP: Final = 3.0
"""A sample counts as at most this many times the estimate."""
FIRST: Final = 4
"""Samples that are taken as they are."""
CACHED: Final = 0.4
"""A prompt that took less than this share of what was expected was cached after all: it says nothing of the rate."""
LATE: Final = 4.0
"""How many times what a first byte takes besides it may be late, until the engine counts as stuck."""


class PrefillClock:
    """The prefill queue of one engine, as one router sees it. All times are seconds."""

    __slots__ = (
        "_begun",
        "_blocks",
        "_pending",
        "_shift",
        "_short_samples",
        "_until",
        "_whole_pending",
        "block",
        "delay",
        "fixed",
        "open",
        "placed",
        "samples",
        "service",
        "token",
    )

    def __init__(self) -> None:
        self.block = DEFAULT_BLOCK_SECONDS
        """Prefill of one block."""
        self.samples = 0
        """Samples of it."""
        self.fixed = 0.0
        """What a first byte takes besides."""
        self.delay = 0.0
        """The same of responses in one piece: their decoding."""
        self.service = 0.0
        """A whole request."""
        self.token = 0.0
        """An output token after the first one; 0: none was seen."""
        self.placed = 0.0
        """Blocks that were new to its cache, older ones counting less."""
        self.open = 0
        """Requests without a first byte; while there are none nobody waits."""
        self._short_samples = 0
        self._pending = 0
        """Streams without a first byte, ..."""
        self._blocks = 0.0
        """... their uncached blocks, ..."""
        self._begun = 0.0
        """... and when it began with the first of them."""
        self._whole_pending = 0
        self._until = 0.0
        """When it will have computed the prompts of responses in one piece."""
        self._shift = 0.0
        """The sum of all moves of that: what was expected before them has moved as well."""

    def wait(self, now: float, routers: int) -> float:
        """Seconds until a prompt sent now is begun, where so many routers send alike."""
        wait = 0.0
        if self._pending:
            wait = (self._blocks * self.block + self._pending * self.fixed) * routers - (now - self._begun)
            if wait < 0.0:  # late: it goes on for as long as it has lasted
                wait = max(0.0, -wait - LATE * self.fixed - self.block)
        if self._whole_pending:
            left = self._until - now
            if left > 0.0:
                wait += left
            elif -left > LATE * self.delay:
                wait -= left
        return wait

    def sent(self, now: float, blocks: float, whole: bool) -> float:
        """A prompt with so many uncached blocks is sent; returns what ``first_byte`` wants as ``reference``.

        Args:
            whole: its response comes in one piece.
        """
        self.open += 1
        if not whole:
            if not self._pending:
                self._begun = now
            self._pending += 1
            self._blocks += blocks
            return now
        self._whole_pending += 1
        self._until = max(self._until, now) + blocks * self.block
        return self._until - self._shift

    def first_byte(self, now: float, reference: float, blocks: float, cached: float, whole: bool) -> None:
        """The response begins to a prompt with so many uncached and cached blocks."""
        self.open -= 1
        if whole:
            self._whole_answered(now, reference, blocks, cached)
            return
        took = now - max(reference, self._begun)
        self._begun = now
        self._left(blocks)
        if blocks >= RATE_BLOCKS:
            if blocks > cached or not self.samples:
                self._learn((took - self.fixed) / blocks)
        else:
            late = took - blocks * self.block
            if late < RATE_BLOCKS * self.block + self.fixed:  # else it was not cached after all
                self._short_samples += 1
                self.fixed = max(0.0, self.fixed + (late - self.fixed) * max(STEADY, 1.0 / self._short_samples))

    def first_byte_elsewhere(self, now: float, reference: float, blocks: float, cached: float, whole: bool) -> None:
        """The response begins to a prompt of another router, which reports it a little later: no sample of the rate."""
        self.open -= 1
        if whole:
            self._whole_answered(now, reference, blocks, cached)
            return
        self._begun = max(self._begun, now)
        self._left(blocks)

    def failed(self, blocks: float, whole: bool) -> None:
        """There will be no first byte: its prompt is not computed."""
        self.open -= 1
        if whole:
            self._whole_pending -= 1
            self._until -= blocks * self.block
        else:
            self._left(blocks)

    def ended(self, seconds: float) -> None:
        """A request that was served took so long in all."""
        self.service = _steadily(self.service, seconds)

    def decoded(self, seconds: float, tokens: int) -> None:
        """A stream of so many output tokens took so long after its first byte."""
        self.token = _steadily(self.token, seconds / tokens)

    def _left(self, blocks: float) -> None:
        self._pending -= 1
        self._blocks = self._blocks - blocks if self._pending else 0.0

    def _whole_answered(self, now: float, reference: float, blocks: float, cached: float) -> None:
        self._whole_pending -= 1
        late = now - reference - self._shift - self.delay
        if blocks >= RATE_BLOCKS:
            if self._short_samples and blocks > cached:
                self._learn(max(self.block + late / blocks, self.block * CACHED))
        else:
            self._short_samples += 1
            self.delay = max(0.0, self.delay + late * max(STEADY, 1.0 / self._short_samples))
        if self._short_samples > FIRST:
            self._shift += late
            self._until += late

    def _learn(self, sample: float) -> None:
        rate = self.block
        if self.samples >= FIRST:
            if sample < rate * CACHED:
                return
            sample = min(sample, rate * CLIP)
        elif sample <= 0.0:
            return
        self.samples += 1
        weight = max(STEADY, 1.0 / self.samples)
        if sample > rate and self.samples > FIRST:
            weight *= UP
        self.block = max(LEAST_BLOCK_SECONDS, rate + (sample - rate) * weight)


def _steadily(estimate: float, sample: float) -> float:
    """The estimate with one more sample."""
    return estimate + (min(sample, estimate * CLIP) - estimate) * STEADY if estimate else sample
