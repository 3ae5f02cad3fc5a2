"""What a policy has learned of all engines together: what a usual prompt costs, and where new blocks went."""

from collections.abc import Sequence
from typing import Final

from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.prefill_clock import PrefillClock
from blade_router.policies.sync_log import SyncLog

HISTORY_BLOCKS: Final = 400.0
"""New blocks per engine after which earlier ones count half."""
RATE_WEIGHT: Final = 0.05
WORK_WEIGHT: Final = 0.01
FORGET: Final = 0.1
"""How far an engine's rate returns to the usual one when earlier blocks come to count half: one that was slow once, and
so gets nothing any more, is tried again."""
FADE: Final = 0.98
LEAST_WORK: Final = 1e-4
LEAST_PLACED: Final = 0.05
"""What any request counts as: those without a prompt go round."""


class FleetTimes:
    """Averages over the engines of one policy. All times are seconds."""

    __slots__ = ("_turn", "block", "log", "output", "placed", "token", "work")

    def __init__(self) -> None:
        self.log: SyncLog | None = None
        """Where choices report to siblings; None: there are none."""
        self.block = 0.0
        """Prefill of a block; 0 while it is unknown. It stands for engines that have not answered yet."""
        self.work = LEAST_WORK
        """Prefill of a request."""
        self.token = 0.0
        """An output token of the faster engines."""
        self.output = 0.0
        """Output tokens of a request."""
        self._turn = 0
        self.placed = 0.0
        """New blocks that were placed, older ones counting less."""

    def decoded(self, token: float, tokens: int) -> None:
        """A stream of so many output tokens is over; its engine usually takes so long for one."""
        if not self.output:
            self.token, self.output = token, float(tokens)
        self.token += (token - self.token) * (WORK_WEIGHT if token > self.token else RATE_WEIGHT)
        self.output += (tokens - self.output) * WORK_WEIGHT

    def record(self, prefill: PrefillClock, blocks: float, candidates: Sequence[Endpoint]) -> None:
        """A prompt with so many uncached blocks is sent to an engine, one of ``candidates``."""
        self.work += (max(blocks * prefill.block, LEAST_WORK) - self.work) * WORK_WEIGHT
        if prefill.samples:
            self.block += (prefill.block - self.block) * (RATE_WEIGHT if self.block else 1.0)
        self._turn = (self._turn + 1) % len(candidates)
        idle = candidates[self._turn].prefill
        if idle is not prefill and not idle.open:  # one slow response must not keep it idle for good
            idle.fixed *= FADE
            idle.delay *= FADE
            idle.token *= FADE
        placed = blocks + LEAST_PLACED
        prefill.placed += placed
        self.placed += placed
        if self.placed > HISTORY_BLOCKS * len(candidates):
            self.placed = 0.0
            for endpoint in candidates:
                each = endpoint.prefill
                each.placed *= 0.5
                self.placed += each.placed
                if self.block:
                    each.block += (self.block - each.block) * FORGET
